// Attention on Hopper's matrix units. The three passes are one walk: a work-group owns 128 rows of one side and walks over the
// rows of the other in tiles of BN.
//
//   PASS       owned         walked      scores (own x walked)        sums (scores x walked)
//   FORWARD    q             k, v        q k^T                        out += p v
//   OF_QUERIES q, grad       k, v        q k^T, grad v^T              dq  += e k
//   OF_KEYS    k, v          q, grad     k q^T, v grad^T              dk  += e q,   dv += p grad
//
//   p = exp(score * scale + mask - logsumexp), e = p * (second score - delta); scores never leave the registers
//
//   time ->    warp group 2 (one work-item)     copy tile 0 | copy tile 1 | wait | copy tile 2 | ...
//                                                 full |  ^ empty       two barriers for each operand of each of STAGES places
//                                                      v  |
//              warp groups 0, 1 (64 own rows each)   scores 0 | softmax 0 | sums 0, scores 1 | softmax 1 | ...
//
// Copies and swizzled places are those of matmul_wgmma.cl. Forward begins the scores of a tile before the sums of the one before it,
// so that the matrix units work while the softmax is computed, and with TURNS the two warp groups take turns at them. It walks
// backwards: all that is hidden by causality or lies behind the last key is in the first tile, and the loop over the others has no
// branches, which would make the compiler wait for every product. Blocks of rows are handed out by a counter, those with the most work
// first.
//
// With SIZE == 4 the numbers are floats, multiplied as tf32. Such operands must lie along k, so for the sums the walked tensors were
// transposed before (attention_turn): rows of D x walked rows, of which each eight lie in the order 0 2 4 6 1 3 5 7, since that is how
// a lane's pairs of columns are met by an instruction that takes columns q and q + 4.
//
// A warp group's scores: lane 4 r + q of warp w holds, of every 8 columns, those of rows 16 w + r and 16 w + r + 8 in columns 2 q and
// 2 q + 1. As the first operand of the next product 16 of its columns lie in just that way, so they only have to be packed.
//
// Compiled with: PASS                 FORWARD, OF_QUERIES or OF_KEYS
//                D                    64 or 128: what is narrower is filled with zeros by the copies
//                BN, STAGES, TURNS    rows of a walked tile (128 in FORWARD), places for tiles in local memory, whether warp groups
//                                     take turns
//                CAUSAL, MASK         whether later keys are hidden; whether a mask is added to the scores
//                SIZE, BF16           the numbers: 4 for float, 2 for bfloat16 or half
//                SCORE_INSTRUCTION, SUM_INSTRUCTION   the matrix instructions of BN and of D columns
//                SCORE_REGISTERS, SCORE_DESCRIPTORS, SUM_REGISTERS, SUM_OPERANDS   their operands: "%0, %1, ..."
//                NEW_SCORES(x), SCORES(x), SUMS(x), PACKED(x)   the compiler's constraints: "=f"(x[0]), "+f"(x[0]), ...
// Lines that begin with //@@ are instructions of sm_90a, which netcl-core's ptx.rs brings to life.

#define FORWARD 0
#define OF_QUERIES 1
#define OF_KEYS 2

#define OWN 128
// Numbers of a line of 128 bytes: a row is cut into boxes of them.
#define LINE (128 / SIZE)
#define BOXES (D / LINE)
#define OWN_BYTES (OWN * D * SIZE)
#define TILE_BYTES (BN * D * SIZE)
// Tiles of a place: the walked tensors, and transposed ones.
#define SLOTS (SIZE == 2 || PASS == FORWARD ? 2 : PASS == OF_QUERIES ? 3 : 4)
#define PLACE_BYTES (SLOTS * TILE_BYTES)
#define OWN_OPERANDS (PASS == FORWARD ? 1 : 2)
#define MAP_WORDS 32
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
// What scores are multiplied by: with a mask they are multiplied as it is added.
#define FACTOR (MASK ? 1.0f : scale * LOG2_E)

#if SIZE == 4
#define TYPE float
#define NUMBER(p, i) (p)[i]
#elif BF16
#define TYPE ushort
#define PAIR "bf16x2"
#define NUMBER(p, i) as_float((uint)(p)[i] << 16)
#else
#define TYPE ushort
#define PAIR "f16x2"
#define NUMBER(p, i) vload_half(i, (global const half *)(p))
#endif

#pragma OPENCL FP_CONTRACT OFF

float from_lane(float x, int other) {
    float y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(x), "r"(other));
    return y;
}

#ifdef PREPARE
// The products of 4 bytes, added up.
float product(uint x, uint y) {
#if SIZE == 4
    return as_float(x) * as_float(y);
#elif BF16
    return as_float(x << 16) * as_float(y << 16) + as_float(x & 0xffff0000u) * as_float(y & 0xffff0000u);
#else
    const float2 a = vload_half2(0, (const half *)&x), b = vload_half2(0, (const half *)&y);
    return a.x * b.x + a.y * b.y;
#endif
}

// For each query the logarithm to base 2 of the softmax's denominator, and the sum of output times gradient: rows of `pitch`, in
// which queries that do not exist have probability 0. LANES work-items to a query.
kernel __attribute__((reqd_work_group_size(256, 1, 1))) void attention_prepare(
    global const TYPE *out, ulong out_at, long out_b, long out_h, long out_r, global const TYPE *grad, ulong grad_at, long grad_b,
    long grad_h, long grad_r, global const float *logsumexp, ulong logsumexp_at, global float *stats, int matrices, int heads,
    int queries, int width, int pitch) {
    const int row = (int)(get_global_id(0) / LANES), column = (int)(get_local_id(0) % LANES) * (16 / SIZE);
    const int matrix = row / pitch, query = row % pitch;
    if (matrix >= matrices) return;
    float sum = 0;
    if (query < queries && column < width) {
        const int b = matrix / heads, h = matrix % heads;
        const uint4 x = *(global const uint4 *)(out + out_at + b * out_b + h * out_h + query * out_r + column);
        const uint4 y = *(global const uint4 *)(grad + grad_at + b * grad_b + h * grad_h + query * grad_r + column);
        sum = product(x.x, y.x) + product(x.y, y.y) + product(x.z, y.z) + product(x.w, y.w);
    }
    for (int step = 1; step < LANES; step *= 2) sum += from_lane(sum, step);
    if (column == 0) {
        const float own = query < queries ? logsumexp[logsumexp_at + (ulong)matrix * queries + query] : INFINITY;
        global float *to = stats + (ulong)matrix * 2 * pitch + query;
        // A query that sees nothing has no probabilities either.
        to[0] = own == -INFINITY ? INFINITY : own * LOG2_E;
        to[pitch] = sum;
    }
}
#if SIZE == 4
// Rows of a tensor as columns, each eight of them in the order in which matrix instructions meet them; zeros behind the last one.
kernel __attribute__((reqd_work_group_size(32, 8, 1))) void attention_turn(
    global const float *x, ulong x_at, long x_b, long x_h, long x_r, global float *out, int heads, int rows, int width, int pitch) {
    local float tile[32][33];
    const int matrix = (int)get_group_id(2), row0 = (int)get_group_id(0) * 32, column0 = (int)get_group_id(1) * 32;
    const int lane = (int)get_local_id(0), own = (int)get_local_id(1);
    global const float *from = x + x_at + (matrix / heads) * x_b + (matrix % heads) * x_h;
    for (int i = own; i < 32; i += 8)
        tile[i][lane] = row0 + i < rows && column0 + lane < width ? from[(row0 + i) * x_r + column0 + lane] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    const int row = (lane & ~7) | ((lane & 3) * 2 + ((lane & 4) >> 2));
    for (int i = own; i < 32; i += 8)
        if (column0 + i < width && row0 + lane < pitch) out[((ulong)matrix * width + column0 + i) * pitch + row0 + lane] = tile[row][i];
}
#endif
#else

uint shared_address(local void *p) { return (uint)(ulong)p; }

void copy_row(uint to, global const float *from, uint bytes, uint bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

// An operand whose rows of 64 numbers lie along k, and one whose rows lie across it, so many to a box.
ulong along(uint address) { return (ulong)((address & 0x3ffff) >> 4) | (ulong)(1024 >> 4) << 32 | 1UL << 62; }
ulong across(uint address, uint rows) { return along(address) | (ulong)(rows * 128 >> 4) << 16; }

uint word_from_lane(uint x, int other) {
    uint y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(x), "r"(other));
    return y;
}

float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#if SIZE == 4
uint rounded(float x) {
    uint y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}
#else
uint pack(float low, float high) {
    uint y;
    asm("cvt.rn." PAIR ".f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
#endif

// They list what is in flight, so that the compiler moves nothing that touches it across them. A list of lists has a name of its own:
// OpenCL C has no macros of any number of arguments.
#define FENCE(list) asm volatile("//@@wgmma.fence.sync.aligned;" : list : : "memory")
#define COMMIT asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory")
#define WAIT(n, list) asm volatile("//@@wgmma.wait_group.sync.aligned " #n ";" : list : : "memory")

// x = own rows x walked rows, over D
#define SCORE(x, own, walked)                                                                                             \
    _Pragma("unroll") for (int i = 0; i < D * SIZE / 32; ++i) {                                                           \
        const ulong a_ = (own) + (i / 4) * (OWN * 128 >> 4) + (i % 4) * 2;                                                \
        const ulong b_ = (walked) + (i / 4) * (BN * 128 >> 4) + (i % 4) * 2;                                              \
        if (i == 0)                                                                                                       \
            asm volatile("//@@" SCORE_INSTRUCTION " {" SCORE_REGISTERS "}, " SCORE_DESCRIPTORS ", 0, 1, 1" SCORE_MAJORS ";"         \
                         : NEW_SCORES(x)                                                                                  \
                         : "l"(a_), "l"(b_)                                                                               \
                         : "memory");                                                                                     \
        else                                                                                                              \
            asm volatile("//@@" SCORE_INSTRUCTION " {" SCORE_REGISTERS "}, " SCORE_DESCRIPTORS ", 1, 1, 1" SCORE_MAJORS ";"         \
                         : SCORES(x)                                                                                      \
                         : "l"(a_), "l"(b_)                                                                               \
                         : "memory");                                                                                     \
    }

// sums += packed scores x walked rows, over BN. FIRST and SECOND: where in a place the rows of either tensor lie for this.
#if SIZE == 4
#define SCORE_MAJORS ""
#define SUM_MAJORS ""
#define FIRST (2 * TILE_BYTES)
#define SECOND ((SLOTS - 1) * TILE_BYTES)
#define DESCRIBE(at, i) (along(at) + (i) / 4 * (D * 128 >> 4) + (i) % 4 * 2)
#define PACK(packed, x)                                                                                                   \
    _Pragma("unroll") for (int i = 0; i < BN / 2; i += 4) {                                                               \
        packed[i] = rounded(x[i]), packed[i + 1] = rounded(x[i + 2]);                                                     \
        packed[i + 2] = rounded(x[i + 1]), packed[i + 3] = rounded(x[i + 3]);                                             \
    }
#define PACKS (BN / 2)
#else
#define SCORE_MAJORS ", 0, 0"
#define SUM_MAJORS ", 1"
#define FIRST 0
#define SECOND TILE_BYTES
#define DESCRIBE(at, i) (across(at, BN) + (i) * 128)
#define PACK(packed, x) \
    _Pragma("unroll") for (int i = 0; i < BN / 4; ++i) packed[i] = pack(x[2 * i], x[2 * i + 1]);
#define PACKS (BN / 4)
#endif
#define ADD_UP(sums, packed, at)                                                                                          \
    _Pragma("unroll") for (int i = 0; i < PACKS / 4; ++i) {                                                               \
        const ulong b_ = DESCRIBE(at, i);                                                                                 \
        asm volatile("//@@" SUM_INSTRUCTION " {" SUM_REGISTERS "}, " SUM_OPERANDS ", 1, 1, 1" SUM_MAJORS ";"              \
                     : SUMS(sums)                                                                                         \
                     : "r"(packed[4 * i]), "r"(packed[4 * i + 1]), "r"(packed[4 * i + 2]), "r"(packed[4 * i + 3]), "l"(b_) \
                     : "memory");                                                                                         \
    }

// Score i of a work-item lies in this row and column.
#define ROW_OF(i) (row0 + ((i) & 2) * 4)
#define COLUMN_OF(i, j) ((j) * BN + (int)(lane & 3) * 2 + (i) / 4 * 8 + ((i) & 1))

// Writes two rows of sums, `pitch` apart from the next ones. Of 16-bit numbers neighbours exchange halves, so that each writes 8 bytes and four of them 32 in a row.
void write_rows(global TYPE *to, int width, long pitch, int row, int rows, int lane, const float *sums, float scale0, float scale1) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        const float scale = lower ? scale1 : scale0;
        const int at = row + 8 * lower;
#if SIZE == 4
#pragma unroll
        for (int i = 0; i < D / 8; ++i) {
            const int column = 8 * i + 2 * (lane & 3);
            if (at < rows && column < width)
                *(global float2 *)(to + at * pitch + column) =
                    (float2)(sums[4 * i + 2 * lower] * scale, sums[4 * i + 2 * lower + 1] * scale);
        }
#else
        const int odd = lane & 1;
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            const uint x = pack(sums[4 * i + 2 * lower] * scale, sums[4 * i + 2 * lower + 1] * scale);
            const uint y = pack(sums[4 * i + 4 + 2 * lower] * scale, sums[4 * i + 5 + 2 * lower] * scale);
            const uint got = word_from_lane(odd ? x : y, 1);
            const int column = odd ? 8 * i + 6 + 2 * (lane & 3) : 8 * i + 2 * (lane & 3);
            if (at < rows && column < width)
                *(global uint2 *)(to + at * pitch + column) = odd ? (uint2)(got, y) : (uint2)(x, got);
        }
#endif
    }
}

// Matrix and block of rows of piece number t: of 32 matrices, whose walked rows the cache can hold, the blocks with the most work.
int2 piece_at(int t, int blocks, int matrices) {
    const int section = t / (32 * blocks), within = t - section * 32 * blocks, wide = min(32, matrices - section * 32);
    const int block = within / wide;
    return (int2)(section * 32 + within % wide, PASS == OF_KEYS ? block : blocks - 1 - block);
}

// The tiles that rows from `first` on see.
#if PASS == OF_KEYS
#define BEGIN (CAUSAL ? first / BN : 0)
#define END ((walk_rows + BN - 1) / BN)
#define MEMBERS group
#else
#define BEGIN 0
#define END (((CAUSAL ? min(walk_rows, first + OWN) : walk_rows) + BN - 1) / BN)
#define MEMBERS 1
#endif

#if TURNS
#define TURN_OF(warp_group) asm volatile("bar.arrive %0, 256;" ::"r"((warp_group) + 1) : "memory")
#define MY_TURN asm volatile("bar.sync %0, 256;" ::"r"(warp_group + 1) : "memory")
#define YOUR_TURN TURN_OF(1 - warp_group)
#else
#define MY_TURN
#define YOUR_TURN
#endif

// x and y are owned, u and w walked; t and z are u and w transposed, where that is needed. `heads` are those of the owned side; `group`
// heads of queries share a head of keys. Of the mask the strides are those of batches, heads, queries and keys.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) void KERNEL(
    global const TYPE *x, ulong x_at, global const TYPE *y, ulong y_at, global const TYPE *u, ulong u_at, global const TYPE *w,
    ulong w_at, global const TYPE *t, ulong t_at, global const TYPE *z, ulong z_at, global const TYPE *mask, ulong mask_at,
    long mask_b, long mask_h, long mask_r, long mask_c, global TYPE *out, ulong out_at, long out_b, long out_h, long out_r,
    global TYPE *out2, ulong out2_at, long out2_b, long out2_h, long out2_r,
    global float *stats, ulong stats_at, global uint *counter, global uint *maps, uint16 x_map0, uint16 x_map1, uint16 y_map0,
    uint16 y_map1, uint16 u_map0, uint16 u_map1, uint16 w_map0, uint16 w_map1, uint16 t_map0, uint16 t_map1, uint16 z_map0,
    uint16 z_map1, int matrices, int heads, int group, int own_rows, int walk_rows, int width, int width2, int pitch, float scale) {
    local uchar owned[OWN_OPERANDS * OWN_BYTES] __attribute__((aligned(1024)));
    local uchar walked[STAGES * PLACE_BYTES] __attribute__((aligned(1024)));
#if PASS == OF_KEYS
    local float columns[STAGES * 2 * BN] __attribute__((aligned(128)));
#endif
    local ulong barriers[4 * STAGES + 2];
    local int next[1];
    const uint item = (uint)get_local_id(0), lane = item & 31, warp = item >> 5, warp_group = warp >> 2;
    const uint own_base = shared_address(owned), walk_base = shared_address(walked);
    // For each place: full and full of its second operand; as many for empty; then those of the owned rows.
    const uint full = shared_address(barriers), empty = full + 16 * STAGES, own_full = full + 32 * STAGES, own_empty = own_full + 8;
    const int blocks = (own_rows + OWN - 1) / OWN, total = blocks * matrices;
    if (item == 0) {
        for (int s = 0; s < 2 * STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 8);
        }
        barrier_init(own_full, 1);
        barrier_init(own_empty, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint s = 0;
    if (warp_group == 2) {
        // Registers that copying does not need go to those who compute.
        asm volatile("//@@setmaxnreg.dec.sync.aligned.u32 24;");
        if ((item & 127) != 0) return;
        global uint *map = maps + get_group_id(0) * 6 * MAP_WORDS;
#define WRITE_MAP(n, name)                                                                       \
    vstore16(name##_map0, 2 * n, map), vstore16(name##_map1, 2 * n + 1, map);                    \
    *(global ulong *)(map + n * MAP_WORDS) = (ulong)(name + name##_at);                          \
    const ulong name##_map = (ulong)(map + n * MAP_WORDS);
        WRITE_MAP(0, x) WRITE_MAP(1, y) WRITE_MAP(2, u) WRITE_MAP(3, w) WRITE_MAP(4, t) WRITE_MAP(5, z)
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
        for (int i = 0; i < 6; ++i)
            asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map + i * MAP_WORDS) : "memory");
        // A barrier's phase before its first counts as complete: all places are empty.
        uint phase = 1, own_phase = 1;
        for (;;) {
            const int piece = (int)atomic_inc(counter);
            barrier_wait(own_empty, own_phase);
            own_phase ^= 1;
            *(volatile local int *)next = piece;
            if (piece >= total) {
                // The last group to ask leaves the counter as it was.
                if (piece == total + (int)get_num_groups(0) - 1) *counter = 0;
                barrier_arrive(own_full);
                return;
            }
            const int2 place = piece_at(piece, blocks, matrices);
            const int b = place.x / heads, h = place.x % heads, first = place.y * OWN;
            barrier_expect(own_full, OWN_OPERANDS * OWN_BYTES);
            for (int i = 0; i < BOXES; ++i) {
                copy_box(own_base + i * OWN * 128, x_map, LINE * i, first, h, b, own_full);
                if (PASS != FORWARD) copy_box(own_base + OWN_BYTES + i * OWN * 128, y_map, LINE * i, first, h, b, own_full);
            }
            for (int member = 0; member < MEMBERS; ++member) {
                const int head = PASS == OF_KEYS ? h * group + member : h / group;
                for (int n = BEGIN; n < END; ++n) {
                    const int j = PASS == FORWARD ? END - 1 - n : n;
                    const uint to = walk_base + s * PLACE_BYTES, bar = full + 16 * s;
                    barrier_wait(empty + 16 * s, phase);
                    barrier_expect(bar, (SLOTS > 2 ? 2 : 1) * TILE_BYTES + (PASS == OF_KEYS ? 8 * BN : 0));
#if PASS == OF_KEYS
                    global const float *from = stats + stats_at + ((ulong)(b * heads * group + head) * 2) * pitch + j * BN;
                    copy_row(shared_address(columns) + s * 8 * BN, from, 4 * BN, bar);
                    copy_row(shared_address(columns) + s * 8 * BN + 4 * BN, from + pitch, 4 * BN, bar);
#endif
                    for (int i = 0; i < BOXES; ++i) copy_box(to + i * BN * 128, u_map, LINE * i, j * BN, head, b, bar);
#if SLOTS > 2
                    for (int i = 0; i < BN / LINE; ++i)
                        copy_box(to + FIRST + i * D * 128, t_map, j * BN + LINE * i, 0, head, b, bar);
#endif
                    barrier_wait(empty + 16 * s + 8, phase);
                    barrier_expect(bar + 8, (SLOTS > 3 ? 2 : 1) * TILE_BYTES);
#if SIZE == 2 || PASS != FORWARD
                    for (int i = 0; i < BOXES; ++i)
                        copy_box(to + TILE_BYTES + i * BN * 128, w_map, LINE * i, j * BN, head, b, bar + 8);
#endif
#if SIZE == 4 && PASS != OF_QUERIES
                    for (int i = 0; i < BN / LINE; ++i)
                        copy_box(to + SECOND + i * D * 128, z_map, j * BN + LINE * i, 0, head, b, bar + 8);
#endif
                    if (++s == STAGES) {
                        s = 0;
                        phase ^= 1;
                    }
                }
            }
        }
    }
    asm volatile("//@@setmaxnreg.inc.sync.aligned.u32 240;");
    const uint mine = warp_group * 64;
    const int in_block = (int)(mine + (warp & 3) * 16 + (lane >> 2));
    const ulong own_x = along(own_base + mine * 128), own_y = along(own_base + OWN_BYTES + mine * 128);
    uint phase = 0, own_phase = 0;
#define RELEASE(bar) \
    if (lane == 0) barrier_arrive(bar)
#define NEXT_PLACE       \
    if (++s == STAGES) { \
        s = 0;           \
        phase ^= 1;      \
    }
#if TURNS
    if (warp_group == 1) TURN_OF(0);
#endif
    for (;;) {
        barrier_wait(own_full, own_phase);
        own_phase ^= 1;
        const int piece = *(volatile local int *)next;
        if (piece >= total) return;
        const int2 place = piece_at(piece, blocks, matrices);
        const int b = place.x / heads, h = place.x % heads, first = place.y * OWN, row0 = first + in_block;
#if PASS == FORWARD
        float scores[BN / 2], sums[D / 2];
        uint p[PACKS];
#define IN_FLIGHT SUMS(sums), PACKED(p)
        float top0 = -INFINITY, top1 = -INFINITY, total0 = 0, total1 = 0, shrink0, shrink1;
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] = 0;
#if MASK
        // Queries that do not exist read the last one's mask.
        global const TYPE *row_mask = mask + mask_at + b * mask_b + h * mask_h;
        const long mask0 = min(row0, own_rows - 1) * mask_r, mask1 = min(row0 + 8, own_rows - 1) * mask_r;
#define ADD_MASK(j)                                                                                                       \
    _Pragma("unroll") for (int i = 0; i < BN / 2; ++i) {                                                                  \
        const long at_ = ((i) & 2 ? mask1 : mask0) + min(COLUMN_OF(i, j), walk_rows - 1) * mask_c;                         \
        scores[i] = fma(scores[i], scale * LOG2_E, NUMBER(row_mask, at_) * LOG2_E);                                                 \
    }
#else
#define ADD_MASK(j)
#endif
#define HIDE(j)                                                                                                           \
    _Pragma("unroll") for (int i = 0; i < BN / 2; ++i)                                                                    \
        if (COLUMN_OF(i, j) >= walk_rows || (CAUSAL && COLUMN_OF(i, j) > ROW_OF(i))) scores[i] = -INFINITY;
#define SOFTMAX                                                                                                           \
    {                                                                                                                     \
        float m0 = top0, m1 = top1;                                                                                       \
        _Pragma("unroll") for (int i = 0; i < BN / 2; i += 4) {                                                           \
            m0 = fmax(m0, fmax(scores[i], scores[i + 1]));                                                                          \
            m1 = fmax(m1, fmax(scores[i + 2], scores[i + 3]));                                                                      \
        }                                                                                                                 \
        m0 = fmax(m0, from_lane(m0, 1)), m1 = fmax(m1, from_lane(m1, 1));                                                 \
        m0 = fmax(m0, from_lane(m0, 2)), m1 = fmax(m1, from_lane(m1, 2));                                                 \
        /* Where everything is hidden so far, any finite number turns minus infinity into 0. */                           \
        const float shift0 = m0 == -INFINITY ? 0 : m0 * FACTOR, shift1 = m1 == -INFINITY ? 0 : m1 * FACTOR;                \
        shrink0 = power(top0 * FACTOR - shift0), shrink1 = power(top1 * FACTOR - shift1);                                 \
        top0 = m0, top1 = m1;                                                                                             \
        total0 *= shrink0, total1 *= shrink1;                                                                             \
        _Pragma("unroll") for (int i = 0; i < BN / 2; i += 4) {                                                           \
            scores[i] = power(fma(scores[i], FACTOR, -shift0)), scores[i + 1] = power(fma(scores[i + 1], FACTOR, -shift0));                    \
            scores[i + 2] = power(fma(scores[i + 2], FACTOR, -shift1)), scores[i + 3] = power(fma(scores[i + 3], FACTOR, -shift1));            \
            total0 += scores[i] + scores[i + 1], total1 += scores[i + 2] + scores[i + 3];                                                     \
        }                                                                                                                 \
    }
        barrier_wait(full + 16 * s, phase);
        MY_TURN;
        FENCE(SUMS(sums));
        SCORE(scores, own_x, along(walk_base + s * PLACE_BYTES))
        COMMIT;
        YOUR_TURN;
        WAIT(0, SCORES(scores));
        RELEASE(empty + 16 * s);
        ADD_MASK(END - 1)
        HIDE(END - 1)
        SOFTMAX
        PACK(p, scores)
        uint held = s, held_phase = phase;
        NEXT_PLACE
        for (int j = END - 2; j >= 0; --j) {
            barrier_wait(full + 16 * s, phase);
            MY_TURN;
            FENCE(IN_FLIGHT);
            SCORE(scores, own_x, along(walk_base + s * PLACE_BYTES))
            COMMIT;
            barrier_wait(full + 16 * held + 8, held_phase);
            ADD_UP(sums, p, walk_base + held * PLACE_BYTES + SECOND)
            COMMIT;
            YOUR_TURN;
            WAIT(1, SCORES(scores));
            RELEASE(empty + 16 * s);
            ADD_MASK(j)
            SOFTMAX
            WAIT(0, IN_FLIGHT);
            RELEASE(empty + 16 * held + 8);
#pragma unroll
            for (int i = 0; i < D / 2; i += 4) {
                sums[i] *= shrink0, sums[i + 1] *= shrink0;
                sums[i + 2] *= shrink1, sums[i + 3] *= shrink1;
            }
            PACK(p, scores)
            held = s, held_phase = phase;
            NEXT_PLACE
        }
        RELEASE(own_empty);
        barrier_wait(full + 16 * held + 8, held_phase);
        FENCE(IN_FLIGHT);
        ADD_UP(sums, p, walk_base + held * PLACE_BYTES + SECOND)
        COMMIT;
        WAIT(0, SUMS(sums));
        RELEASE(empty + 16 * held + 8);
        total0 += from_lane(total0, 1), total1 += from_lane(total1, 1);
        total0 += from_lane(total0, 2), total1 += from_lane(total1, 2);
        // A query that sees nothing gives zeros.
        const float share0 = total0 == 0 ? 0 : 1 / total0, share1 = total1 == 0 ? 0 : 1 / total1;
        write_rows(out + out_at + b * out_b + h * out_h, width, out_r, row0, own_rows, (int)lane, sums, share0, share1);
        if ((lane & 3) == 0) {
            global float *to = stats + stats_at + (ulong)place.x * own_rows;
            if (row0 < own_rows) to[row0] = top0 * FACTOR * LN_2 + log(total0);
            if (row0 + 8 < own_rows) to[row0 + 8] = top1 * FACTOR * LN_2 + log(total1);
        }
#else
        float scores[BN / 2], g[BN / 2], sums[D / 2];
        uint e[PACKS];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] = 0;
#if PASS == OF_KEYS
        float sums2[D / 2];
        uint p[PACKS];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums2[i] = 0;
#define IN_FLIGHT SUMS(sums), SUMS(sums2), PACKED(p), PACKED(e)
#else
        global const float *row_stats = stats + stats_at + (ulong)place.x * 2 * pitch + row0;
        const float shift0 = row_stats[0], shift1 = row_stats[8], delta0 = row_stats[pitch], delta1 = row_stats[pitch + 8];
#define IN_FLIGHT SUMS(sums), PACKED(e)
#endif
#define SCORES_AND_SUMS SCORES(scores), IN_FLIGHT
#define KEYS_SUMS SUMS(sums), PACKED(e)
#define VALUES_SUMS SUMS(sums2), PACKED(p)
        int held = -1;
        for (int member = 0; member < MEMBERS; ++member) {
#if MASK
            global const TYPE *scores_mask = mask + mask_at + b * mask_b + (PASS == OF_KEYS ? h * group + member : h) * mask_h;
#endif
            for (int j = BEGIN; j < END; ++j) {
                const uint at = walk_base + s * PLACE_BYTES;
                barrier_wait(full + 16 * s, phase);
                FENCE();
                SCORE(scores, own_x, along(at))
                COMMIT;
                barrier_wait(full + 16 * s + 8, phase);
                SCORE(g, own_y, along(at + TILE_BYTES))
                COMMIT;
                WAIT(1, SCORES_AND_SUMS);
                if (held >= 0) {
                    RELEASE(empty + 16 * held);
                    RELEASE(empty + 16 * held + 8);
                }
                held = (int)s;
#if MASK
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) {
                    const long own = min(ROW_OF(i), own_rows - 1), other = min(COLUMN_OF(i, j), walk_rows - 1);
                    const long place_ = PASS == OF_KEYS ? other * mask_r + own * mask_c : own * mask_r + other * mask_c;
                    scores[i] = fma(scores[i], scale * LOG2_E, NUMBER(scores_mask, place_) * LOG2_E);
                }
#endif
#if PASS == OF_KEYS
                local const float2 *shifts = (local const float2 *)(columns + s * 2 * BN) + (lane & 3), *deltas = shifts + BN / 2;
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    const float2 shift = shifts[i];
                    scores[i] = power(fma(scores[i], FACTOR, -shift.x)), scores[i + 1] = power(fma(scores[i + 1], FACTOR, -shift.y));
                    scores[i + 2] = power(fma(scores[i + 2], FACTOR, -shift.x)), scores[i + 3] = power(fma(scores[i + 3], FACTOR, -shift.y));
                }
                if (CAUSAL && j * BN < first + (int)mine + 63) {
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i)
                        if (COLUMN_OF(i, j) < ROW_OF(i)) scores[i] = 0;
                }
                PACK(p, scores)
                FENCE(VALUES_SUMS);
                ADD_UP(sums2, p, at + SECOND)
                COMMIT;
                WAIT(1, SCORES(g));
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    const float2 delta = deltas[i];
                    scores[i] *= g[i] - delta.x, scores[i + 1] *= g[i + 1] - delta.y;
                    scores[i + 2] *= g[i + 2] - delta.x, scores[i + 3] *= g[i + 3] - delta.y;
                }
#else
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    scores[i] = power(fma(scores[i], FACTOR, -shift0)), scores[i + 1] = power(fma(scores[i + 1], FACTOR, -shift0));
                    scores[i + 2] = power(fma(scores[i + 2], FACTOR, -shift1)), scores[i + 3] = power(fma(scores[i + 3], FACTOR, -shift1));
                }
                if ((CAUSAL && (j + 1) * BN > first + (int)mine) || (j + 1) * BN > walk_rows) {
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i)
                        if (COLUMN_OF(i, j) >= walk_rows || (CAUSAL && COLUMN_OF(i, j) > ROW_OF(i))) scores[i] = 0;
                }
                WAIT(0, SCORES(g));
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    scores[i] *= g[i] - delta0, scores[i + 1] *= g[i + 1] - delta0;
                    scores[i + 2] *= g[i + 2] - delta1, scores[i + 3] *= g[i + 3] - delta1;
                }
#endif
                PACK(e, scores)
                FENCE(KEYS_SUMS);
                ADD_UP(sums, e, at + FIRST)
                COMMIT;
                NEXT_PLACE
            }
        }
        RELEASE(own_empty);
        WAIT(0, IN_FLIGHT);
        if (held >= 0) {
            RELEASE(empty + 16 * held);
            RELEASE(empty + 16 * held + 8);
        }
        write_rows(out + out_at + b * out_b + h * out_h, width, out_r, row0, own_rows, (int)lane, sums, scale, scale);
#if PASS == OF_KEYS
        write_rows(out2 + out2_at + b * out2_b + h * out2_h, width2, out2_r, row0, own_rows, (int)lane, sums2, 1, 1);
#endif
#endif
    }
}
#endif
