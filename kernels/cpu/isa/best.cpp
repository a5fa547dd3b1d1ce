// Prints the best instruction set of this machine; cmake runs it where nothing else is to be compiled for.
#include <cstdio>

#include "supported.h"

int main() { std::fputs(lowprec::supports_v4() ? "v4" : lowprec::supports_v3() ? "v3" : "v2", stdout); }
