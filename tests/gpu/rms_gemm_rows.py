"""Calls of rms_gemm, rms_gemm_rope and gemm_rms_rows that tests/gpu/test_rms_gemm.py runs, and whether sm_90a has one kernel for each: what is picked is known
without a GPU, and tests/test_norm_gemm.py asks it there."""
# T, M, K, eight bits (2: of out too), gated, fused: K cut in one, two, four, eight; K off whole steps and sums off whole fours. The last: rows of few
# tokens leave in e4m3 only from gated products, whose columns meet in a register; a plain product's leave in 16 bits.
RMS_GEMM = [(50, 8192, 1024, 0, 1, 1), (50, 2560, 1024, 0, 0, 1), (64, 1024, 4096, 0, 0, 1), (1, 2560, 1024, 0, 0, 1), (17, 6144, 2048, 0, 1, 1), (33, 2048, 1024, 1, 0, 1), (64, 4096, 2048, 1, 1, 1),
            (1, 6144, 4096, 0, 0, 1), (16, 24576, 4096, 0, 1, 1), (32, 4096, 1024, 0, 0, 1), (2, 1920, 576, 0, 1, 1), (9, 520, 264, 0, 0, 1), (5, 512, 400, 1, 0, 1), (70, 512, 256, 0, 0, 0),
            (50, 2560, 1024, 1, 0, 1), (50, 8192, 1024, 2, 1, 1), (7, 6144, 2048, 2, 1, 1), (33, 1056, 512, 2, 1, 1), (33, 528, 512, 2, 0, 0)]
# T, heads of q and of k, D, K, eight bits, fused: K cut in two blocks and in more, tiles of 8 to 64 tokens, heads of two tiles and of four; K whole, e4m3, more
# tokens, heads of no whole tiles.
RMS_GEMM_ROPE = [(50, 8, 1, 256, 1024, 0, 1), (64, 8, 1, 256, 1024, 0, 1), (16, 8, 1, 256, 1024, 0, 1), (10, 8, 1, 256, 1024, 0, 1), (1, 8, 1, 256, 1024, 0, 1), (32, 24, 4, 128, 2048, 0, 1),
                 (33, 8, 1, 256, 1000, 0, 1), (9, 4, 2, 128, 520, 0, 1), (3, 2, 1, 64, 264, 0, 1), (50, 8, 1, 256, 1024, 1, 0), (70, 8, 1, 256, 1024, 0, 0), (5, 4, 2, 80, 256, 0, 0), (50, 64, 8, 128, 4096, 0, 0)]
# T, N, K, eight bits (1: of the operands, 2: of the rows that leave), gate, type of a weight (else a scale), fused: K whole, cut in two, four, eight; N
# of eights that are no sixteens, and of no eights.
GEMM_RMS_ROWS = [(50, 1024, 2048, 0, 1, None, 1), (50, 1024, 4096, 0, 1, None, 1), (64, 1024, 4096, 1, 1, None, 1), (33, 1040, 4096, 0, 0, None, 1), (40, 528, 2048, 1, 0, None, 1),
                 (16, 1024, 4096, 0, 1, None, 1), (50, 2560, 1024, 0, 0, None, 1), (90, 512, 256, 0, 1, None, 0), (1, 4096, 4096, 0, 0, "bf16", 1), (1, 4096, 12288, 0, 0, "bf16", 1),
                 (16, 4096, 12288, 0, 0, "f32", 1), (32, 4096, 4096, 0, 0, "bf16", 1), (8, 1024, 3072, 0, 0, "bf16", 1), (32, 1024, 3072, 0, 0, "bf16", 1), (4, 2048, 8192, 0, 0, "bf16", 1),
                 (48, 2048, 2048, 0, 0, "bf16", 1), (6, 576, 1536, 0, 0, "f32", 1), (64, 8200, 512, 0, 0, "bf16", 1), (3, 8200, 512, 0, 0, "bf16", 1), (5, 1028, 512, 0, 0, "bf16", 0),
                 (5, 1024, 512, 0, 0, "f16", 0), (50, 1024, 2048, 3, 1, None, 1), (50, 1024, 4096, 3, 1, None, 1), (16, 1024, 4096, 3, 1, None, 1), (1, 4096, 4096, 2, 0, "f32", 1),
                 (64, 8200, 512, 2, 0, "bf16", 1), (33, 1040, 4096, 3, 0, None, 1), (90, 512, 256, 3, 1, None, 0), (5, 1028, 512, 2, 0, "bf16", 0)]
