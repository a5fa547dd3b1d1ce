"""Operations and layers on tiles: codelets, their cycles and the builders that add them to a graph (PopLibs' part).

None of it needs a training layer, and the compiler lowers to the same vertices. Operations (`elementwise`, `matmul`,
`reduce`, `convolution`, `moves`, `rows`, `tables`) give the programs that run them. Layers (`softmax`, `log_sum_exp`,
`cross_entropy`, `layer_norm`, `rms_norm`, `group_norm`, `batch_norm`, `max_pool2d`, `avg_pool2d`, `lstm_cell`,
`gru_cell`, `attention`, `multi_head_attention`, `rotary_embedding`, `embedding`, `topk`, the masks) and random numbers
(`uniform`, `normal`, `bernoulli`) append theirs to a list and give the tensors that they make:

    graph, programs = Graph("gc200"), []
    logits = normal(graph, (64, 10), programs)
    probabilities = softmax(graph, logits, programs)
    Engine(graph, Sequence(*programs), key=1).run()
"""
