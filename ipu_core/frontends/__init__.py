"""Front doors: models and scripts of other libraries, as functions that are traced or emulated."""
