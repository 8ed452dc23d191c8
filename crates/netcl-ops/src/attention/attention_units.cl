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
// A warp group's scores: lane 4 r + q of warp w holds, of every 8 columns, those of rows 16 w + r and 16 w + r + 8 in columns 2 q and
// 2 q + 1. As the first operand of the next product 16 of its columns lie in just that way, so they only have to be packed.
//
// Compiled with: PASS                 FORWARD, OF_QUERIES or OF_KEYS
//                D                    64 or 128: what is narrower is filled with zeros by the copies
//                BN, STAGES, TURNS    rows of a walked tile (128 in FORWARD), places for tiles in local memory, whether warp groups
//                                     take turns
//                CAUSAL, MASK         whether later keys are hidden; whether a mask is added to the scores
//                BF16                 the numbers: bfloat16 or half
//                SCORE_INSTRUCTION, SUM_INSTRUCTION   the matrix instructions of BN and of D columns
//                SCORE_REGISTERS, SCORE_DESCRIPTORS, SUM_REGISTERS, SUM_OPERANDS   their operands: "%0, %1, ..."
//                NEW_SCORES(x), SCORES(x), SUMS(x), PACKED(x)   the compiler's constraints: "=f"(x[0]), "+f"(x[0]), ...
// Lines that begin with //@@ are instructions of sm_90a, which netcl-core's ptx.rs brings to life.

#define FORWARD 0
#define OF_QUERIES 1
#define OF_KEYS 2

#define OWN 128
#define BOXES (D / 64)
#define OWN_BYTES (OWN * D * 2)
#define TILE_BYTES (BN * D * 2)
#define OWN_OPERANDS (PASS == FORWARD ? 1 : 2)
#define MAP_WORDS 32
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
// What scores are multiplied by: with a mask they are multiplied as it is added.
#define FACTOR (MASK ? 1.0f : scale * LOG2_E)

#if BF16
#define PAIR "bf16x2"
#define NUMBER(p, i) as_float((uint)(p)[i] << 16)
#else
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
// The sum of the products of two pairs.
float product(uint x, uint y) {
#if BF16
    return as_float(x << 16) * as_float(y << 16) + as_float(x & 0xffff0000u) * as_float(y & 0xffff0000u);
#else
    const float2 a = vload_half2(0, (const half *)&x), b = vload_half2(0, (const half *)&y);
    return a.x * b.x + a.y * b.y;
#endif
}

// For each query the logarithm to base 2 of the softmax's denominator, and the sum of output times gradient: rows of `pitch`, in
// which queries that do not exist have probability 0. LANES work-items to a query.
kernel __attribute__((reqd_work_group_size(256, 1, 1))) void attention_prepare(
    global const ushort *out, ulong out_at, long out_b, long out_h, long out_r, global const ushort *grad, ulong grad_at, long grad_b,
    long grad_h, long grad_r, global const float *logsumexp, ulong logsumexp_at, global float *stats, int matrices, int heads,
    int queries, int width, int pitch) {
    const int row = (int)(get_global_id(0) / LANES), column = (int)(get_local_id(0) % LANES) * 8;
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

uint pack(float low, float high) {
    uint y;
    asm("cvt.rn." PAIR ".f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// They name what is in flight, so that the compiler moves nothing that touches it across them.
#define FENCE(...) asm volatile("//@@wgmma.fence.sync.aligned;" : __VA_ARGS__ : : "memory")
#define COMMIT asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory")
#define WAIT(n, ...) asm volatile("//@@wgmma.wait_group.sync.aligned " #n ";" : __VA_ARGS__ : : "memory")

// x = own rows x walked rows, over D
#define SCORE(x, own, walked)                                                                                             \
    _Pragma("unroll") for (int i = 0; i < D / 16; ++i) {                                                                  \
        const ulong a_ = (own) + (i / 4) * (OWN * 128 >> 4) + (i % 4) * 2;                                                \
        const ulong b_ = (walked) + (i / 4) * (BN * 128 >> 4) + (i % 4) * 2;                                              \
        if (i == 0)                                                                                                       \
            asm volatile("//@@" SCORE_INSTRUCTION " {" SCORE_REGISTERS "}, " SCORE_DESCRIPTORS ", 0, 1, 1, 0, 0;"         \
                         : NEW_SCORES(x)                                                                                  \
                         : "l"(a_), "l"(b_)                                                                               \
                         : "memory");                                                                                     \
        else                                                                                                              \
            asm volatile("//@@" SCORE_INSTRUCTION " {" SCORE_REGISTERS "}, " SCORE_DESCRIPTORS ", 1, 1, 1, 0, 0;"         \
                         : SCORES(x)                                                                                      \
                         : "l"(a_), "l"(b_)                                                                               \
                         : "memory");                                                                                     \
    }

// sums += packed scores x walked rows, over BN
#define ADD_UP(sums, packed, walked)                                                                                      \
    _Pragma("unroll") for (int i = 0; i < BN / 16; ++i) {                                                                 \
        const ulong b_ = (walked) + i * 128;                                                                              \
        asm volatile("//@@" SUM_INSTRUCTION " {" SUM_REGISTERS "}, " SUM_OPERANDS ", 1, 1, 1, 1;"                         \
                     : SUMS(sums)                                                                                         \
                     : "r"(packed[4 * i]), "r"(packed[4 * i + 1]), "r"(packed[4 * i + 2]), "r"(packed[4 * i + 3]), "l"(b_) \
                     : "memory");                                                                                         \
    }

#define PACK(packed, x) \
    _Pragma("unroll") for (int i = 0; i < BN / 4; ++i) packed[i] = pack(x[2 * i], x[2 * i + 1]);

// Score i of a work-item lies in this row and column.
#define ROW_OF(i) (row0 + ((i) & 2) * 4)
#define COLUMN_OF(i, j) ((j) * BN + (int)(lane & 3) * 2 + (i) / 4 * 8 + ((i) & 1))

// Writes two rows of sums. Neighbours exchange halves, so that each writes 8 bytes and four of them 32 in a row.
void write_rows(global ushort *to, int width, int row, int rows, int lane, const float *sums, float scale0, float scale1) {
    const int odd = lane & 1;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        const float scale = lower ? scale1 : scale0;
        const int at = row + 8 * lower;
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            const uint x = pack(sums[4 * i + 2 * lower] * scale, sums[4 * i + 2 * lower + 1] * scale);
            const uint y = pack(sums[4 * i + 4 + 2 * lower] * scale, sums[4 * i + 5 + 2 * lower] * scale);
            const uint got = word_from_lane(odd ? x : y, 1);
            const int column = odd ? 8 * i + 6 + 2 * (lane & 3) : 8 * i + 2 * (lane & 3);
            if (at < rows && column < width)
                *(global uint2 *)(to + (long)at * width + column) = odd ? (uint2)(got, y) : (uint2)(x, got);
        }
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

// Queries, keys: x and y are owned, u and w walked. `heads` are those of the owned side; `group` heads of queries share a head of
// keys. Of the mask the strides are those of batches, heads, queries and keys.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) void KERNEL(
    global const ushort *x, ulong x_at, global const ushort *y, ulong y_at, global const ushort *u, ulong u_at,
    global const ushort *w, ulong w_at, global const ushort *mask, ulong mask_at, long mask_b, long mask_h, long mask_r, long mask_c,
    global ushort *out, ulong out_at, global ushort *out2, ulong out2_at, global float *stats, ulong stats_at, global uint *counter,
    global uint *maps, uint16 x_map0, uint16 x_map1, uint16 y_map0, uint16 y_map1, uint16 u_map0, uint16 u_map1, uint16 w_map0,
    uint16 w_map1, int matrices, int heads, int group, int own_rows, int walk_rows, int width, int width2, int pitch, float scale) {
    local uchar owned[OWN_OPERANDS * OWN_BYTES] __attribute__((aligned(1024)));
    local uchar walked[STAGES * 2 * TILE_BYTES] __attribute__((aligned(1024)));
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
        global uint *map = maps + get_group_id(0) * 4 * MAP_WORDS;
        vstore16(x_map0, 0, map), vstore16(x_map1, 1, map), vstore16(y_map0, 2, map), vstore16(y_map1, 3, map);
        vstore16(u_map0, 4, map), vstore16(u_map1, 5, map), vstore16(w_map0, 6, map), vstore16(w_map1, 7, map);
        *(global ulong *)map = (ulong)(x + x_at);
        *(global ulong *)(map + MAP_WORDS) = (ulong)(y + y_at);
        *(global ulong *)(map + 2 * MAP_WORDS) = (ulong)(u + u_at);
        *(global ulong *)(map + 3 * MAP_WORDS) = (ulong)(w + w_at);
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
        for (int i = 0; i < 4; ++i)
            asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map + i * MAP_WORDS) : "memory");
        const ulong x_map = (ulong)map, y_map = x_map + 128, u_map = x_map + 256, w_map = x_map + 384;
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
                copy_box(own_base + i * OWN * 128, x_map, 64 * i, first, h, b, own_full);
                if (PASS != FORWARD) copy_box(own_base + OWN_BYTES + i * OWN * 128, y_map, 64 * i, first, h, b, own_full);
            }
            for (int member = 0; member < MEMBERS; ++member) {
                const int head = PASS == OF_KEYS ? h * group + member : h / group;
                for (int n = BEGIN; n < END; ++n) {
                    const int j = PASS == FORWARD ? END - 1 - n : n;
                    const uint to = walk_base + s * 2 * TILE_BYTES, bar = full + 16 * s;
                    barrier_wait(empty + 16 * s, phase);
                    barrier_expect(bar, TILE_BYTES + (PASS == OF_KEYS ? 8 * BN : 0));
#if PASS == OF_KEYS
                    global const float *from = stats + stats_at + ((ulong)(b * heads * group + head) * 2) * pitch + j * BN;
                    copy_row(shared_address(columns) + s * 8 * BN, from, 4 * BN, bar);
                    copy_row(shared_address(columns) + s * 8 * BN + 4 * BN, from + pitch, 4 * BN, bar);
#endif
                    for (int i = 0; i < BOXES; ++i) copy_box(to + i * BN * 128, u_map, 64 * i, j * BN, head, b, bar);
                    barrier_wait(empty + 16 * s + 8, phase);
                    barrier_expect(bar + 8, TILE_BYTES);
                    for (int i = 0; i < BOXES; ++i)
                        copy_box(to + TILE_BYTES + i * BN * 128, w_map, 64 * i, j * BN, head, b, bar + 8);
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
        float t[BN / 2], sums[D / 2];
        uint p[BN / 4];
        float top0 = -INFINITY, top1 = -INFINITY, total0 = 0, total1 = 0, shrink0, shrink1;
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] = 0;
#if MASK
        // Queries that do not exist read the last one's mask.
        global const ushort *row_mask = mask + mask_at + b * mask_b + h * mask_h;
        const long mask0 = min(row0, own_rows - 1) * mask_r, mask1 = min(row0 + 8, own_rows - 1) * mask_r;
#define ADD_MASK(j)                                                                                                       \
    _Pragma("unroll") for (int i = 0; i < BN / 2; ++i) {                                                                  \
        const long at_ = ((i) & 2 ? mask1 : mask0) + min(COLUMN_OF(i, j), walk_rows - 1) * mask_c;                         \
        t[i] = fma(t[i], scale * LOG2_E, NUMBER(row_mask, at_) * LOG2_E);                                                 \
    }
#else
#define ADD_MASK(j)
#endif
#define HIDE(j)                                                                                                           \
    _Pragma("unroll") for (int i = 0; i < BN / 2; ++i)                                                                    \
        if (COLUMN_OF(i, j) >= walk_rows || (CAUSAL && COLUMN_OF(i, j) > ROW_OF(i))) t[i] = -INFINITY;
#define SOFTMAX                                                                                                           \
    {                                                                                                                     \
        float m0 = top0, m1 = top1;                                                                                       \
        _Pragma("unroll") for (int i = 0; i < BN / 2; i += 4) {                                                           \
            m0 = fmax(m0, fmax(t[i], t[i + 1]));                                                                          \
            m1 = fmax(m1, fmax(t[i + 2], t[i + 3]));                                                                      \
        }                                                                                                                 \
        m0 = fmax(m0, from_lane(m0, 1)), m1 = fmax(m1, from_lane(m1, 1));                                                 \
        m0 = fmax(m0, from_lane(m0, 2)), m1 = fmax(m1, from_lane(m1, 2));                                                 \
        /* Where everything is hidden so far, any finite number turns minus infinity into 0. */                           \
        const float shift0 = m0 == -INFINITY ? 0 : m0 * FACTOR, shift1 = m1 == -INFINITY ? 0 : m1 * FACTOR;                \
        shrink0 = power(top0 * FACTOR - shift0), shrink1 = power(top1 * FACTOR - shift1);                                 \
        top0 = m0, top1 = m1;                                                                                             \
        total0 *= shrink0, total1 *= shrink1;                                                                             \
        _Pragma("unroll") for (int i = 0; i < BN / 2; i += 4) {                                                           \
            t[i] = power(fma(t[i], FACTOR, -shift0)), t[i + 1] = power(fma(t[i + 1], FACTOR, -shift0));                    \
            t[i + 2] = power(fma(t[i + 2], FACTOR, -shift1)), t[i + 3] = power(fma(t[i + 3], FACTOR, -shift1));            \
            total0 += t[i] + t[i + 1], total1 += t[i + 2] + t[i + 3];                                                     \
        }                                                                                                                 \
    }
        barrier_wait(full + 16 * s, phase);
        MY_TURN;
        FENCE(SUMS(sums));
        SCORE(t, own_x, along(walk_base + s * 2 * TILE_BYTES))
        COMMIT;
        YOUR_TURN;
        WAIT(0, SCORES(t));
        RELEASE(empty + 16 * s);
        ADD_MASK(END - 1)
        HIDE(END - 1)
        SOFTMAX
        PACK(p, t)
        uint held = s, held_phase = phase;
        NEXT_PLACE
        for (int j = END - 2; j >= 0; --j) {
            barrier_wait(full + 16 * s, phase);
            MY_TURN;
            FENCE(SUMS(sums), PACKED(p));
            SCORE(t, own_x, along(walk_base + s * 2 * TILE_BYTES))
            COMMIT;
            barrier_wait(full + 16 * held + 8, held_phase);
            ADD_UP(sums, p, across(walk_base + held * 2 * TILE_BYTES + TILE_BYTES, BN))
            COMMIT;
            YOUR_TURN;
            WAIT(1, SCORES(t));
            RELEASE(empty + 16 * s);
            ADD_MASK(j)
            SOFTMAX
            WAIT(0, SUMS(sums), PACKED(p));
            RELEASE(empty + 16 * held + 8);
#pragma unroll
            for (int i = 0; i < D / 2; i += 4) {
                sums[i] *= shrink0, sums[i + 1] *= shrink0;
                sums[i + 2] *= shrink1, sums[i + 3] *= shrink1;
            }
            PACK(p, t)
            held = s, held_phase = phase;
            NEXT_PLACE
        }
        RELEASE(own_empty);
        barrier_wait(full + 16 * held + 8, held_phase);
        FENCE(SUMS(sums), PACKED(p));
        ADD_UP(sums, p, across(walk_base + held * 2 * TILE_BYTES + TILE_BYTES, BN))
        COMMIT;
        WAIT(0, SUMS(sums));
        RELEASE(empty + 16 * held + 8);
        total0 += from_lane(total0, 1), total1 += from_lane(total1, 1);
        total0 += from_lane(total0, 2), total1 += from_lane(total1, 2);
        // A query that sees nothing gives zeros.
        const float share0 = total0 == 0 ? 0 : 1 / total0, share1 = total1 == 0 ? 0 : 1 / total1;
        write_rows(out + out_at + (ulong)place.x * own_rows * width, width, row0, own_rows, (int)lane, sums, share0, share1);
        if ((lane & 3) == 0) {
            global float *to = stats + stats_at + (ulong)place.x * own_rows;
            if (row0 < own_rows) to[row0] = top0 * FACTOR * LN_2 + log(total0);
            if (row0 + 8 < own_rows) to[row0 + 8] = top1 * FACTOR * LN_2 + log(total1);
        }
#else
        float t[BN / 2], g[BN / 2], sums[D / 2];
        uint e[BN / 4];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] = 0;
#if PASS == OF_KEYS
        float sums2[D / 2];
        uint p[BN / 4];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums2[i] = 0;
#define IN_FLIGHT SUMS(sums), SUMS(sums2), PACKED(p), PACKED(e)
#else
        global const float *row_stats = stats + stats_at + (ulong)place.x * 2 * pitch + row0;
        const float shift0 = row_stats[0], shift1 = row_stats[8], delta0 = row_stats[pitch], delta1 = row_stats[pitch + 8];
#define IN_FLIGHT SUMS(sums), PACKED(e)
#endif
        int held = -1;
        for (int member = 0; member < MEMBERS; ++member) {
#if MASK
            global const ushort *scores_mask = mask + mask_at + b * mask_b + (PASS == OF_KEYS ? h * group + member : h) * mask_h;
#endif
            for (int j = BEGIN; j < END; ++j) {
                const uint at = walk_base + s * 2 * TILE_BYTES;
                barrier_wait(full + 16 * s, phase);
                FENCE();
                SCORE(t, own_x, along(at))
                COMMIT;
                barrier_wait(full + 16 * s + 8, phase);
                SCORE(g, own_y, along(at + TILE_BYTES))
                COMMIT;
                WAIT(1, SCORES(t), IN_FLIGHT);
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
                    t[i] = fma(t[i], scale * LOG2_E, NUMBER(scores_mask, place_) * LOG2_E);
                }
#endif
#if PASS == OF_KEYS
                local const float2 *shifts = (local const float2 *)(columns + s * 2 * BN) + (lane & 3), *deltas = shifts + BN / 2;
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    const float2 shift = shifts[i];
                    t[i] = power(fma(t[i], FACTOR, -shift.x)), t[i + 1] = power(fma(t[i + 1], FACTOR, -shift.y));
                    t[i + 2] = power(fma(t[i + 2], FACTOR, -shift.x)), t[i + 3] = power(fma(t[i + 3], FACTOR, -shift.y));
                }
                if (CAUSAL && j * BN < first + (int)mine + 63) {
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i)
                        if (COLUMN_OF(i, j) < ROW_OF(i)) t[i] = 0;
                }
                PACK(p, t)
                FENCE(SUMS(sums2), PACKED(p));
                ADD_UP(sums2, p, across(at + TILE_BYTES, BN))
                COMMIT;
                WAIT(1, SCORES(g));
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    const float2 delta = deltas[i];
                    t[i] *= g[i] - delta.x, t[i + 1] *= g[i + 1] - delta.y;
                    t[i + 2] *= g[i + 2] - delta.x, t[i + 3] *= g[i + 3] - delta.y;
                }
#else
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    t[i] = power(fma(t[i], FACTOR, -shift0)), t[i + 1] = power(fma(t[i + 1], FACTOR, -shift0));
                    t[i + 2] = power(fma(t[i + 2], FACTOR, -shift1)), t[i + 3] = power(fma(t[i + 3], FACTOR, -shift1));
                }
                if ((CAUSAL && (j + 1) * BN > first + (int)mine) || (j + 1) * BN > walk_rows) {
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i)
                        if (COLUMN_OF(i, j) >= walk_rows || (CAUSAL && COLUMN_OF(i, j) > ROW_OF(i))) t[i] = 0;
                }
                WAIT(0, SCORES(g));
#pragma unroll
                for (int i = 0; i < BN / 2; i += 4) {
                    t[i] *= g[i] - delta0, t[i + 1] *= g[i + 1] - delta0;
                    t[i + 2] *= g[i + 2] - delta1, t[i + 3] *= g[i + 3] - delta1;
                }
#endif
                PACK(e, t)
                FENCE(SUMS(sums), PACKED(e));
                ADD_UP(sums, e, across(at, BN))
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
        write_rows(out + out_at + (ulong)place.x * own_rows * width, width, row0, own_rows, (int)lane, sums, scale, scale);
#if PASS == OF_KEYS
        write_rows(out2 + out2_at + (ulong)place.x * own_rows * width2, width2, row0, own_rows, (int)lane, sums2, 1, 1);
#endif
#endif
    }
}
#endif
