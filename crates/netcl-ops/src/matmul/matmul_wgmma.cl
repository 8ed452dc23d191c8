// A matrix product on Hopper's matrix units: one work-group per compute unit walks over tiles of c.
//
//           BK                     BN                              BN
//         +-----+            +-----------+                  +-----------------+
//         |  a  | BM         |     b     | BK               | warp group 1    | 64 rows: BN / 2 sums in each of
//         |     |      x     +-----------+         ->    BM +-----------------+ its 128 work-items
//         |     |                                           | warp group 2    | 64 rows
//         +-----+                                           +-----------------+
//
//   time ->      warp group 0     copy 0 | copy 1 | copy 2 | copy 3 | wait | copy 4 | ...     (one work-item of it)
//                                    |  ^
//                               full |  | empty     two barriers for each of STAGES places in local memory
//                                    v  |
//                warp groups 1, 2  wait | multiply 0 | multiply 1 | ...                       then the epilogue
//
// The copies are the tensor copy engine's: a map (netcl-core, tensor_map.rs) says how an operand lies in memory, a box of it
// arrives in the order in which the matrix units want to read it (swizzled), zeros stand for what lies outside. Each group
// writes its maps to memory of its own first, since only the kernel knows the addresses. While group 1 and 2 write results
// the copies for the next tile are already under way. The order of tiles and how results are written: see
// matmul_units.cl.
//
// With SHARED_TAIL the tail wave, which would leave units idle, is stream-K: the terms of its tiles, one tile's after the
// other's, are cut into one piece for each work-group, which may be the end of one tile and the beginning of the next. Of the
// groups that share a tile the last to arrive adds up the partial sums in memory, in the order of the terms, so that the result
// does not depend on who it is.
//
// With PARTS == 3 the operands are float32 numbers that matmul_split.cl has cut into three bfloat16 parts, the first the
// largest. Of the nine products of parts the six that matter to float32 are added, the smallest first, while all parts lie in
// local memory. Matrix units cut off low bits when they add, so their sums start anew every BK terms and are added up
// outside, rounded. A sum that is no finite number raises `flag`: parts of an Inf or a NaN mean nothing, and the caller then
// multiplies again without parts.
//
// What a tile's rows are and how its operands are copied can be another's: conv_units.cl reads windows of images.
//
// Compiled with: KERNEL         the name
//                BN, BK, STAGES the tile (BM is 128), places in local memory
//                SIZE, PARTS    bytes of an element, parts of an operand
//                A_ALONG_K, B_ALONG_K   1 where neighbours in memory lie along k, 0 where they lie along m or n
//                SHARED_TAIL    1 where the tail wave is stream-K
//                AT_ONCE        how many groups' sums are taken up at once
//                INSTRUCTION, MAJORS    the matrix instruction and its flags for operands that lie along m or n
//                REGISTERS, DESCRIPTORS, SUMS   its operands: "%0, %1, ...", the two after them, "+f"(d[0]), ...
//                OPERANDS       the same with the first operand in registers: "{%n, ...}, %m"
//                EACH_SUM(X), EACH_PAIR(X)      X(0) X(1) ... for every sum; X(0) X(2) ... for every pair of 8 columns
// and with what matmul_units.cl, which stands before as copy_engine.cl does, asks for.
// Lines that begin with //@@ are instructions of sm_90a, which netcl-core's ptx.rs brings to life.

#define BM 128
#define ROW_BYTES (BK * SIZE)
#define A_PART (BM * ROW_BYTES)
#define B_PART (BN * ROW_BYTES)
#define A_BYTES (PARTS * A_PART)
#define STAGE_BYTES (PARTS * (A_PART + B_PART))
// One instruction takes 32 bytes along k of every row.
#define STEPS (ROW_BYTES / 32)
// Lines of a box of an operand that does not lie along k: 128 bytes.
#define BLOCK (128 / SIZE)
#define CONSUMERS 2

#ifndef LOADER_PARAMS
#define LOADER_PARAMS
#define ROWS m
#define TILES_M ((int)((m + BM - 1) / BM))
#define CHUNKS ((int)((k + BK - 1) / BK))
#define FIRST_ROW ((INDEX)place.y * BM)
#define BEGIN_TILE
#define LOADER_TILE                                                                                                     \
    const int a_z = i0 * a_z0 + i1 * a_z1, a_w = i0 * a_w0, b_z = i0 * b_z0 + i1 * b_z1, b_w = i0 * b_w0;               \
    /* The next round reads much of what this one did: it turns round where the cache still holds that. */              \
    const bool backwards = tile / (int)get_num_groups(0) & 1;
#define COPY_STAGE                                                                                                      \
    const int term = (backwards ? begin + end - 1 - chunk : chunk) * BK;                                                \
    barrier_expect(bar, STAGE_BYTES);                                                                                   \
    for (int p = 0; p < PARTS; ++p) {                                                                                   \
        copy_lines(to + p * A_PART, (ulong)a_map, A_ALONG_K, BM, place.y * BM, term, a_z, a_w + p, bar);                \
        copy_lines(to + A_BYTES + p * B_PART, (ulong)b_map, B_ALONG_K, BN, place.z * BN, term, b_z, b_w + p, bar);      \
    }
#endif
// A work-item's sums, in fours.
#define FOURS (BN / 8)
#define MAP_WORDS 32
#if SHARED_TAIL
#define TAIL_PARAMS , global float4 *left_behind, global uint *arrivals, int whole
#else
#define TAIL_PARAMS
#endif

// Copies `lines` rows of a (columns of b) from `line` on, BK terms of each from `term` on.
void copy_lines(uint to, ulong map, int along_k, int lines, int line, int term, int z, int w, uint bar) {
    if (along_k) {
        copy_box(to, map, term, line, z, w, bar);
    } else {
        for (int i = 0; i < lines; i += BLOCK) copy_box(to + i * ROW_BYTES, map, line + i, term, z, w, bar);
    }
}

// Where an operand of the matrix unit lies in local memory and how it is swizzled.
ulong describe(uint address, int along_k) {
    const ulong start = (address & 0x3ffff) >> 4;
    // Along k: rows of ROW_BYTES, eight of them repeat the pattern. Else: BLOCK lines to a box, eight terms repeat it.
    return along_k ? start | (ulong)(8 * ROW_BYTES >> 4) << 32 | (ROW_BYTES == 128 ? 1UL : 2UL) << 62
                   : start | (ulong)(BLOCK * ROW_BYTES >> 4) << 16 | (ulong)(1024 >> 4) << 32 | 1UL << 62;
}

#define FENCE asm volatile("fence.acq_rel.gpu;" ::: "memory")
#define WARP_GROUP_BARRIER(name) asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory")

#if SHARED_TAIL
// Of a tail of so many chunks: where a group's piece begins, and whose piece a chunk belongs to.
int piece_start(int group, int tail) { return (int)((long)group * tail / (long)get_num_groups(0)); }
int owner(int chunk, int tail) { return (int)((((long)chunk + 1) * (long)get_num_groups(0) - 1) / tail); }
#endif

// Goes through a group's tiles: `tile` is a tile's number, [begin, end) the chunks of its terms.
#if SHARED_TAIL
#define TAIL_CHUNKS ((total - whole) * chunks)
#define EACH_TILE                                                                                                       \
    int at = piece_start((int)get_group_id(0), TAIL_CHUNKS), tile = (int)get_group_id(0), begin = 0, end = chunks;       \
    const int stop = piece_start((int)get_group_id(0) + 1, TAIL_CHUNKS);                                                 \
    for (;; tile += (int)get_num_groups(0))
#define NEXT_TILE                                                                                                       \
    if (tile >= whole) {                                                                                                \
        if (at >= stop) break;                                                                                          \
        tile = whole + at / chunks, begin = at % chunks, end = min(chunks, begin + stop - at);                           \
        at += end - begin;                                                                                              \
    }
#else
#define EACH_TILE                                                                                                       \
    const int begin = 0, end = chunks;                                                                                  \
    for (int tile = (int)get_group_id(0); tile < total; tile += (int)get_num_groups(0))
#define NEXT_TILE
#endif

// How far one instruction goes along k, in units of 16 bytes.
#define STRIDE(along_k) ((along_k) ? 2 : 128)

#define MULTIPLY(a, b)                                                                                                  \
    asm volatile("//@@" INSTRUCTION " {" REGISTERS "}, " DESCRIPTORS ", 1, 1, 1" MAJORS ";"                              \
                 : SUMS                                                                                                 \
                 : "l"(a), "l"(b)                                                                                       \
                 : "memory")

// 32-bit numbers of a that do not lie along k reach the matrix units through registers, four for each instruction: rows r and
// r + 8 of 16, terms t and t + 4 of 8.
#define BY_REGISTERS (SIZE == 4 && !A_ALONG_K)
#if BY_REGISTERS
#define FOUR(x) "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])
#define LOAD_FOUR(x, step)                                                                                              \
    asm volatile("ld.shared.b32 %0, [%4+%8]; ld.shared.b32 %1, [%5+%8]; "                                                \
                 "ld.shared.b32 %2, [%6+%8]; ld.shared.b32 %3, [%7+%8];"                                                 \
                 : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3])                                                    \
                 : "r"(from0), "r"(from1), "r"(from2), "r"(from3), "n"((step) * 1024)                                    \
                 : "memory")
#define MULTIPLY_FOUR(x, b)                                                                                             \
    asm volatile("//@@" INSTRUCTION " {" REGISTERS "}, " OPERANDS ", 1, 1, 1;"                                            \
                 : SUMS                                                                                                 \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(b)                                                    \
                 : "memory")
#endif

// Operands: z and w are the coordinates of a matrix in its map, as steps per index of the two batch axes.
kernel __attribute__((reqd_work_group_size(128 * (CONSUMERS + 1), 1, 1))) void KERNEL(
    global const uchar *a, ulong a_at, global const uchar *b, ulong b_at, global OUT *c, ulong c_at, global uint *maps,
    uint16 a_map0, uint16 a_map1, uint16 b_map0, uint16 b_map1, INDEX m, INDEX n, INDEX k, int batch0, int batch1,
    int a_z0, int a_z1, int a_w0, int b_z0, int b_z1, int b_w0, INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1,
    int dense FLAG_PARAM EPILOGUE_PARAMS TAIL_PARAMS LOADER_PARAMS) {
    local uchar tiles[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
    local ulong barriers[2 * STAGES];
#if SHARED_TAIL
    local uint arrived[CONSUMERS];
#endif
    const uint item = (uint)get_local_id(0), lane = item & 31, warp = item >> 5, warp_group = warp >> 2;
    const uint base = shared_address(tiles), full = shared_address(barriers), empty = full + 8 * STAGES;
    const int tiles_m = TILES_M, tiles_n = (int)((n + BN - 1) / BN);
    const int total = tiles_m * tiles_n * batch0 * batch1, chunks = CHUNKS;
    if (item == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4 * CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint s = 0;
    if (warp_group == 0) {
        // Registers that copying does not need go to those who add up.
        asm volatile("//@@setmaxnreg.dec.sync.aligned.u32 40;");
        if (item != 0) return;
        global uint *a_map = maps + get_group_id(0) * 2 * MAP_WORDS, *b_map = a_map + MAP_WORDS;
        vstore16(a_map0, 0, a_map);
        vstore16(a_map1, 1, a_map);
        vstore16(b_map0, 0, b_map);
        vstore16(b_map1, 1, b_map);
        *(global ulong *)a_map = (ulong)(a + a_at * SIZE);
        *(global ulong *)b_map = (ulong)(b + b_at * SIZE);
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(a_map) : "memory");
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(b_map) : "memory");
        // A barrier's phase before its first counts as complete: all places are empty.
        uint phase = 1;
        EACH_TILE {
            NEXT_TILE
            const int3 place = tile_at(tile, tiles_m, tiles_n);
            const int i0 = place.x / batch1, i1 = place.x % batch1;
            LOADER_TILE
            for (int chunk = begin; chunk < end; ++chunk) {
                const uint to = base + s * STAGE_BYTES, bar = full + 8 * s;
                barrier_wait(empty + 8 * s, phase);
                COPY_STAGE
                if (++s == STAGES) {
                    s = 0;
                    phase ^= 1;
                }
            }
        }
        return;
    }
    asm volatile("//@@setmaxnreg.inc.sync.aligned.u32 232;");
    uint phase = 0;
    const uint mine = (warp_group - 1) * 64;
#if BY_REGISTERS
    uint x0[4] = {0, 0, 0, 0}, x1[4] = {0, 0, 0, 0}, x2[4] = {0, 0, 0, 0}, x3[4] = {0, 0, 0, 0};
    // Where this work-item's four numbers lie in a tile: box, term, swizzled piece of 16 bytes, place in the piece.
    const uint line = mine + (warp & 3) * 16 + (lane >> 2), term = lane & 3, piece = line % BLOCK / 4;
    const uint box = line / BLOCK * (BK * 128) + term * 128 + line % 4 * 4;
    const uint corner0 = box + (piece ^ term) * 16, corner1 = box + ((piece + 2) ^ term) * 16;
    const uint corner2 = (corner0 ^ 64) + 512, corner3 = (corner1 ^ 64) + 512;
#endif
    EACH_TILE {
        NEXT_TILE
        const int3 place = tile_at(tile, tiles_m, tiles_n);
        float d[BN / 2];
#define ZERO(i) d[i] = 0.0f;
#define ZERO_TOTAL(i) sums[i] = 0.0f;
        EACH_SUM(ZERO)
#if PARTS == 3
        float sums[BN / 2];
        EACH_SUM(ZERO_TOTAL)
#else
#define sums d
        // The place whose terms may still be being multiplied.
        int held = -1;
#endif
        for (int chunk = begin; chunk < end; ++chunk) {
            barrier_wait(full + 8 * s, phase);
            const uint at = base + s * STAGE_BYTES;
            const ulong a_tile = describe(at + mine * ROW_BYTES, A_ALONG_K), b_tile = describe(at + A_BYTES, B_ALONG_K);
#if BY_REGISTERS
            // Two instructions run while the numbers of the next two are loaded.
            const uint from0 = at + corner0, from1 = at + corner1, from2 = at + corner2, from3 = at + corner3;
            LOAD_FOUR(x0, 0);
            LOAD_FOUR(x1, 1);
            asm volatile("//@@wgmma.fence.sync.aligned;" : SUMS, FOUR(x0), FOUR(x1) : : "memory");
            MULTIPLY_FOUR(x0, b_tile);
            MULTIPLY_FOUR(x1, b_tile + 2);
            asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("//@@wgmma.wait_group.sync.aligned 1;" : SUMS, FOUR(x2), FOUR(x3) : : "memory");
            if (held >= 0 && lane == 0) barrier_arrive(empty + 8 * held);
            held = (int)s;
            LOAD_FOUR(x2, 2);
            LOAD_FOUR(x3, 3);
            asm volatile("//@@wgmma.fence.sync.aligned;" : SUMS, FOUR(x2), FOUR(x3) : : "memory");
            MULTIPLY_FOUR(x2, b_tile + 4);
            MULTIPLY_FOUR(x3, b_tile + 6);
            asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("//@@wgmma.wait_group.sync.aligned 1;" : SUMS, FOUR(x0), FOUR(x1) : : "memory");
#else
            asm volatile("//@@wgmma.fence.sync.aligned;" : SUMS : : "memory");
#if PARTS == 3
#define MULTIPLY_PARTS(i, j)                                                                                            \
    _Pragma("unroll") for (int step = 0; step < STEPS; ++step)                                                           \
        MULTIPLY(a_tile + (i) * (A_PART >> 4) + step * STRIDE(A_ALONG_K),                                                \
                 b_tile + (j) * (B_PART >> 4) + step * STRIDE(B_ALONG_K));
            MULTIPLY_PARTS(2, 0)
            MULTIPLY_PARTS(0, 2)
            MULTIPLY_PARTS(1, 1)
            MULTIPLY_PARTS(1, 0)
            MULTIPLY_PARTS(0, 1)
            MULTIPLY_PARTS(0, 0)
            asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("//@@wgmma.wait_group.sync.aligned 0;" : SUMS : : "memory");
            if (lane == 0) barrier_arrive(empty + 8 * s);
#define PROMOTE(i)                                                                                                      \
    sums[i] += d[i];                                                                                                    \
    d[i] = 0.0f;
            EACH_SUM(PROMOTE)
#else
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                MULTIPLY(a_tile + step * STRIDE(A_ALONG_K), b_tile + step * STRIDE(B_ALONG_K));
            asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory");
            // All but the products just begun are done: the place before this one is free.
            asm volatile("//@@wgmma.wait_group.sync.aligned 1;" : SUMS : : "memory");
            if (held >= 0 && lane == 0) barrier_arrive(empty + 8 * held);
            held = (int)s;
#endif
#endif
            if (++s == STAGES) {
                s = 0;
                phase ^= 1;
            }
        }
#if PARTS != 3
        asm volatile("//@@wgmma.wait_group.sync.aligned 0;" : SUMS : : "memory");
        if (held >= 0 && lane == 0) barrier_arrive(empty + 8 * held);
#endif
#if BN <= 64
        // Where half of a tile's rows or all lie below the last one, there is nothing to add up or to write.
        if (FIRST_ROW + mine >= ROWS) continue;
#endif
#if SHARED_TAIL
        if (end - begin < chunks) {
            // A group's first piece and its second have places of their own; so have the two warp groups. Only the first of those
            // that share a tile may have begun with another one.
            const int first_chunk = (tile - whole) * chunks, tail = TAIL_CHUNKS, me = (int)get_group_id(0);
            const int from = owner(first_chunk, tail), until = owner(first_chunk + chunks - 1, tail) + 1;
            const int second = piece_start(from, tail) < first_chunk;
            const uint member = item & 127, half_tile = warp_group - 1;
#define LEFT_BY(group) \
    (left_behind + (((ulong)(group) * 2 + ((group) == from && second)) * 2 + half_tile) * (FOURS * 128) + member)
            global float4 *mine = LEFT_BY(me);
#define LEAVE(i) \
    if ((i) % 4 == 0) mine[(i) / 4 * 128] = (float4)(sums[i], sums[(i) | 1], sums[(i) | 2], sums[(i) | 3]);
            EACH_SUM(LEAVE)
            FENCE;
            WARP_GROUP_BARRIER(1 + half_tile);
            if (member == 0) arrived[half_tile] = atomic_inc(arrivals + 2 * (tile - whole) + half_tile);
            WARP_GROUP_BARRIER(1 + half_tile);
            if (arrived[half_tile] != (uint)(until - from - 1)) continue;
            FENCE;
            if (member == 0) arrivals[2 * (tile - whole) + half_tile] = 0;
            EACH_SUM(ZERO_TOTAL)
            for (int group = from; group < until; group += AT_ONCE) {
                // All of them are on their way before the first is needed.
                float4 theirs[AT_ONCE][FOURS];
#pragma unroll
                for (int g = 0; g < AT_ONCE; ++g)
#pragma unroll
                    for (int i = 0; i < FOURS; ++i)
                        theirs[g][i] = group + g < until ? *(volatile global float4 *)(LEFT_BY(group + g) + i * 128) : (float4)(0);
#pragma unroll
                for (int g = 0; g < AT_ONCE; ++g) {
#define TAKE_UP(i)                                                                                                      \
    sums[i] += (i) % 4 == 0   ? theirs[g][(i) / 4].x                                                                     \
               : (i) % 4 == 1 ? theirs[g][(i) / 4].y                                                                     \
               : (i) % 4 == 2 ? theirs[g][(i) / 4].z                                                                     \
                              : theirs[g][(i) / 4].w;
                    EACH_SUM(TAKE_UP)
                }
            }
        }
#endif
#if PARTS == 3
        int strange = 0;
#define LOOK(i) strange |= !isfinite(sums[i]);
        EACH_SUM(LOOK)
        if (strange) *flag = 1;
#endif
        const INDEX i0 = place.x / batch1, i1 = place.x % batch1;
        BEGIN_TILE
        const INDEX row = FIRST_ROW + mine + (warp & 3) * 16 + (lane >> 2);
        const INDEX col = (INDEX)place.z * BN + (lane & 3) * 2;
        global OUT *out = c + c_at + i0 * c_b0 + i1 * c_b1;
#define SINGLE_PAIR(i)                                                                                                  \
    WRITE_SINGLE(row, col + 8 * (i), sums[4 * (i)], sums[4 * (i) + 1], sums[4 * (i) + 4], sums[4 * (i) + 5])             \
    WRITE_SINGLE(row + 8, col + 8 * (i), sums[4 * (i) + 2], sums[4 * (i) + 3], sums[4 * (i) + 6], sums[4 * (i) + 7])
#if DENSE != 0
        // One way for all of a tile, so that its instructions stand in a row, with places that differ by constants only.
        if (dense) {
            const bool upper = ROW_INSIDE(row), lower = ROW_INSIDE(row + 8);
            global OUT *above = out + ROW_AT(row) + (col + PLACE_OF_FOUR), *below = out + ROW_AT(row + 8) + (col + PLACE_OF_FOUR);
#define GUARDED(inside, sum, r, s) ((inside) && (s) < n ? FINISHED(sum, r, s) : (VALUE)0)
#define DENSE_ROW(at, inside, r, i, j)                                                                                  \
    {                                                                                                                   \
        const VALUE v0 = GUARDED(inside, sums[j], r, col + 8 * (i)), v1 = GUARDED(inside, sums[j + 1], r, col + 8 * (i) + 1); \
        const VALUE v2 = GUARDED(inside, sums[j + 4], r, col + 8 * (i) + 8);                                              \
        const VALUE v3 = GUARDED(inside, sums[j + 5], r, col + 8 * (i) + 9);                                              \
        STORE_FOUR(at, 8 * (i), inside, col, n, v0, v1, v2, v3)                                                           \
    }
#define DENSE_PAIR(i)                                                                                                   \
    DENSE_ROW(above, upper, row, i, 4 * (i))                                                                             \
    DENSE_ROW(below, lower, row + 8, i, 4 * (i) + 2)
            EACH_PAIR(DENSE_PAIR)
        } else
#endif
        {
            EACH_PAIR(SINGLE_PAIR)
        }
    }
}
