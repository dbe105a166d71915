# a character-level model for two CPU cores
n_layer = 4
n_head = 6
n_embd = 192
block_size = 128
batch_size = 12
gradient_accumulation_steps = 3
max_iters = 32
