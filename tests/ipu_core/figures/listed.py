"""Names of all figures that must have a row, by the page of facts that they stand on: written out here anew."""

from __future__ import annotations

CHIPS = ("gc2", "gc200", "bow", "c600")
RUNS = [
    *(("v1.0", work, n) for work in ("bert", "resnet") for n in (16, 64)),
    *(("v1.1", work, n) for work in ("bert", "resnet") for n in (16, 64)),
    ("v1.1", "bert", 128),
    *(("v2.0", work, n) for work in ("bert", "resnet") for n in (16, 64, 128)),
]

MACHINE = [
    *(f"{chip}-{figure}" for chip in CHIPS for figure in ("tiles", "workers", "tile-memory", "clock", "macs-fp16.16")),
    *(f"{chip}-macs-{kind}" for chip in CHIPS[:3] for kind in ("fp16.32", "fp32.32")), "c600-macs-fp8",
    "gc2-peak-fp16.32", "gc2-peak-fp32.32", "gc200-peak-fp16.16", "gc200-peak-fp16.32", "gc200-peak-fp32.32",
    "bow-peak-fp16.16", "c600-peak-fp16.16", "c600-peak-fp8",
    *(f"{chip}-{figure}" for chip in CHIPS[:3] for figure in ("sram-bandwidth", "exchange", "links")), "c600-links",
    "gc2-links-and-host", "gc200-host", "bow-host", "links-count", "exchange-bytes", "exchange-bytes-shared",
    "load-store-bytes", "gc2-message-under-load", "gc2-link-message-under-load",
    # systems
    *(f"{name}-{figure}" for name in ("c2", "m2000", "pod16", "pod64", "bow-2000") for figure in ("peak", "memory")),
    "bow-2000-sram-bandwidth", *(f"bow-pod{n}-peak" for n in (16, 32, 64, 256, 1024)), "m2000-streaming-memory",
    "bow-2000-streaming-memory", "mlperf-streaming-memory", "streaming-memory-largest", "m2000-streaming-bandwidth",
    "good-computer", "good-computer-memory", "m2000-fabric", "m2000-leaves", "gateway-links", "m2000-host",
    "m2000-host-share", "link-x16", "link-planner", "sync-across-chips", "gcl", "pipeline-cycles", "pipeline-time",
    "pipeline-efficiency", "pipeline-stashes", "all-reduce-bytes", "all-reduce-messages", "link-efficiency",
    "interleaving-bubble", "zero-bubble-h1", "zero-bubble-forms",
    # codelets and plans
    "exchange-fixed", "sync", *(f"amp-half-{n}" for n in (0, 1, 2, 3, 10)), *(f"amp-float-{n}" for n in (1, 2, 3, 10)),
    "amp-retention", "amp-load", "amp-supervisor", "convolution-supervisor", "reduce-supervisor", "cast", "dropout",
    "elementwise", "normal-numbers", "product-compute", "product-end-to-end", "product-compute-fp16.32",
    "product-end-to-end-fp16.32", "split", "copy-2-byte-atoms", "microbenchmarks", "error-vtrain", "error-llmcompass",
    # measured
    *(f"mlperf-{release}-{work}-{n}-{figure}" for release, work, n in RUNS
      for figure in ("rate", "step", "per-chip", "batch", "time", "samples")),
    "bert-bow-slope", "bert-bow-constant", "bert-bow-slope-16", "resnet-bow-slope", "resnet-bow-constant",
    "resnet-gc200-slope", "resnet-gc200-constant", "bert-bow-fill", "bert-bow-all-reduce", "bert-bow-unexplained",
    "run-constants", "bert-useful-flops", "resnet-useful-flops", "gpt2-micro-batch", "gpt2-micro-batch-cycles",
    "bert-stage-cycles-low", "bert-stage-cycles-high", "resnet-gc200-cycles", "resnet-bow-cycles", "resnet-gc2-cycles",
    "lstm-gc2-rows", "bert-large-stage", "gpt2-stage", "resnet50-gc200", "resnet50-bow", "resnet50-gc2", "lstm-gc2",
    "wavenet-gc2", *(f"argonne-resnet-{n}" for n in (2, 4, 8, 16, 64)), "argonne-gpt2-rate",
    *(f"predicted-{run}-{figure}" for run in ("bert-bow-256", "resnet-bow-256", "resnet-gc200-128", "resnet-gc200-256")
      for figure in ("step", "rate")),
    *(f"megatron-{size}-{kind}" for size in ("22b", "175b") for kind in ("full", "selective")),
    # power
    "gc200-power", "m2000-power-most", "m2000-power-typical", "m2000-power-bert", "bow-2000-power", "c600-power",
    "c2-power", "gc200-share-low", "gc200-share-high", "bow-share", "gc2-share", "hbm2-pj-per-byte",
    *(f"joules-{run}" for run in ("bert-gc200-low", "bert-gc200-high", "bert-bow", "resnet-gc200-low",
                                  "resnet-gc200-high", "resnet-bow")),
    "pj-per-useful-flop", "pj-over-peak", "horowitz-fp16-add", "horowitz-fp16-multiply", "horowitz-fp32-add",
    "horowitz-fp32-multiply", "horowitz-sram", "horowitz-dram", "counts-share",
]  # fmt: skip

TRAINING = [
    *(f"recipe-v2-{n}-{field}" for n in (16, 64, 128) for field in ("b1", "b2", "micro-batches", "clip-norm")),
    "recipe-v2-loss-scale", "recipe-v2-weight-decay", "recipe-v2-first-scale", "recipe-v2-second-scale",
    *(f"recipe-v1.1-{n}-micro-batches" for n in (16, 64, 128)), "recipe-v1.1-b2", "recipe-v1.1-loss-scale",
    "recipe-samples", "lamb-eps", "lamb-max-weight-norm", "second-moment-vanishes-v2", "second-moment-vanishes",
    "stash143-step", "stash143-largest", "stash143-0.03", "stash143-0.07",
    *(f"second-moment-float16-{case}-{mode}" for mode in ("nearest", "stochastic")
      for case in ("0.999-0.1", "0.999-0.01", "0.999-0.003", "0.999-0.001", "0.99-0.003", "0.99-0.001")),
    *(f"unit-{f}{way}" for f in ("gelu", "relu", "tanh", "sigmoid") for way in ("", "-gradient")), "unit-matmul",
    "unit-attention",
    *(f"character-lm-{kind}" for kind in ("no-scaling", "unit-fp16", "loss-scale", "fp32", "fp32-unit")),
    *(f"wikipedia-{depth}-{figure}" for depth in (1, 2, 3, "3-nnlshp", 4, 8, "max")
      for figure in ("packs", "efficiency", "factor")), "wikipedia-1-efficiency-exact",
    "packing-speed-2-spfhp", "packing-speed-3-spfhp", "packing-speed-3-nnlshp",
    *(f"packing-speed-{depth}" for depth in (4, 8, "max")),
    *(f"squad-{depth}-{figure}" for depth in (1, 2, "3-nnlshp", "max")
      for figure in ("strategies", "packs", "tokens", "padding", "efficiency", "factor")),
    "packing-most", "mask",
]  # fmt: skip

PUBLISHED = [
    *(f"harmonic-{fmt}-{figure}" for fmt in ("float16", "bfloat16") for figure in ("value", "term")),
    *(f"harmonic-error-{fmt}-{n}-{kind}" for fmt in ("float16", "bfloat16") for n in (1000, 10000, 1000000)
      for kind in ("nearest", "mean", "largest")),
    *(f"matvec-{fmt}-{n}-{mode}" for fmt in ("float16", "bfloat16") for n in (10000, 100000)
      for mode in ("nearest", "stochastic")), "matvec-bound-float16", "matvec-bound-bfloat16", "croci-settings",
    *(f"chunked-{n}-{kind}" for n in (4096, 16384, 65536)
      for kind in ("exact", "plain", "stochastic", "32", "64", "256")),
    "wang-resnet18", "wang-nearest-update", "wang-accuracy", "gupta-mnist-float", "gupta-cnn-float", "gupta-cnn-14",
    "gupta-cnn-12", "gupta-cifar", "gupta-little", "q8.8-step", "q8.8-largest",
    *(f"second-moment-bfloat16-{beta}-{mode}" for beta in (0.95, 0.99, 0.999) for mode in ("nearest", "stochastic")),
    "zamirai-gain", "zamirai-gap", "ozkara-throughput", "ozkara-memory", "micikevicius-ssd", "micikevicius-factor",
    "micikevicius-speech", "nvidia-mmlu-pro", "h800-error",
    *(f"aligned-{bits}{way}" for bits in (10, 12, 13) for way in ("", "-promoted")), "aligned-positive",
    "aligned-positive-mean", "aligned-positive-promoted", "u-mup-rates",
    *(f"trial-{name}" for name in ("fixed-point", "few-bits", "fp8", "four-bits", "bfloat16", "accumulators",
                                   "torch-dispatch", "torch-export", "products")),
    *(f"reproduce-{name}" for name in ("sums", "accumulators", "tensor-cores", "fixed-point", "few-bits", "weights",
                                       "fp8", "four-bits", "reversible", "packing", "unit-bert", "stash", "graphs",
                                       "hmc", "small-batches")),
]  # fmt: skip

TALKS = [
    *(f"talk-{name}" for name in ("tgn", "schnet", "cookienetae", "ecmwf", "prices", "transistors", "gin-data",
                                  "gin-parameters", "uno-parameters", "braggnn", "hmc", "densenet", "small-batches")),
]  # fmt: skip

PAGES = {"the machine": MACHINE, "training": TRAINING, "published effects": PUBLISHED, "talks": TALKS}
