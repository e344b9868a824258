// The arithmetic and the codecs of exchanges, for a CUDA device and, to be tested, for any processor.
//
// The bytes are normative in docs/protocol.md, section 6.1, and those of trainer/src/codec: plain f32 in
// a fixed order of sums. Compile without fused multiply-add and without fast math. A block is the work of
// 32 lanes, in phases: what a lane leaves in `Shared` the others see in the next phase. A NaN that
// arithmetic makes counts as 0x7fc00000 where its bits become codes: devices disagree about them.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC_RTC__
#define DEVICE static __device__ __forceinline__
#else
#include <string.h>
#define DEVICE static inline
#endif

#define LANES 32
// Warps of a thread block: `THREADS` of kernels.rs, divided by the lanes.
#define WARPS 8
#define BLOCK 256
#define INT2_BLOCK 1024
#define SIGN_BLOCK 1024
// Rounds a number of magnitude under 2^22 that it is added to; the low bits are then the integer.
#define ROUND 12582912.0f
#define ROUND_BITS 0x4b400000u
// 2^-100: blocks below travel as zeros.
#define TINY 7.88860905e-31f
#define INFINITY_BITS 0x7f800000u
#define NAN_BITS 0x7fc00000u
#define HASH_BASE 0x9e3779b1u
#define MODULAR_BLOCK 1024
// Bits of a step's floor below those of a code.
#define SHARE_BITS 13
// What exchanges keep of a bound, and by how much they make it wider.
#define SPREAD_KEPT 0.95f
#define SPREAD_WIDER 4.0f

// `Work` of kernels.rs: what a kernel is to do. What it does not use is zero.
struct Work {
    const float *from;
    float *to;
    // Momentum, spread by block, or the receiver's own numbers.
    float *beside;
    u8 *bytes;
    u32 *unread;
    u64 len;
    // Blocks, or shares of a reduction.
    u64 units;
    // Numbers of a share, or bits of a modular code.
    u64 share;
    float first;
    float second;
};

// What the lanes of a block tell each other.
struct Shared {
    u32 words[LANES];
    u32 hashes[LANES];
    float sums[LANES];
    float lows[LANES];
    float highs[LANES];
    double squares[LANES];
    float threshold;
};

#ifdef __CUDACC_RTC__
DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
DEVICE float number_of(u32 bits) { return __uint_as_float(bits); }
DEVICE void count_one(u32 *counter) { atomicAdd(counter, 1u); }

// One thread for each element.
#define ELEMENTS(name)                                                                             \
    extern "C" __global__ void name(Work work) {                                                   \
        u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                    \
        if (index < work.len) name##_at(work, index);                                              \
    }
// One warp for each unit.
#define UNITS(name, phases)                                                                        \
    extern "C" __global__ void name(Work work) {                                                   \
        __shared__ Shared rooms[WARPS];                                                            \
        u32 lane = threadIdx.x % LANES;                                                            \
        u64 unit = (u64)blockIdx.x * WARPS + threadIdx.x / LANES;                                  \
        Shared &shared = rooms[threadIdx.x / LANES];                                               \
        if (unit >= work.units) return;                                                            \
        phases                                                                                     \
    }
#define PHASE(body)                                                                                \
    body(work, unit, lane, shared);                                                                \
    __syncwarp();
#else
template <typename To, typename From> DEVICE To as(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
DEVICE u32 bits_of(float value) { return as<u32>(value); }
DEVICE float number_of(u32 bits) { return as<float>(bits); }
DEVICE void count_one(u32 *counter) { *counter += 1; }

#define ELEMENTS(name)                                                                             \
    extern "C" void name(Work work) {                                                              \
        for (u64 index = 0; index < work.len; index++) name##_at(work, index);                     \
    }
#define UNITS(name, phases)                                                                        \
    extern "C" void name(Work work) {                                                              \
        for (u64 unit = 0; unit < work.units; unit++) {                                            \
            Shared shared;                                                                         \
            phases                                                                                 \
        }                                                                                          \
    }
#define PHASE(body)                                                                                \
    for (u32 lane = 0; lane < LANES; lane++) body(work, unit, lane, shared);
#endif

static_assert(sizeof(Work) == 72, "as Work of kernels.rs");

DEVICE u32 magnitude_bits(float value) { return bits_of(value) & 0x7fffffffu; }
DEVICE float magnitude(float value) { return number_of(magnitude_bits(value)); }
DEVICE u32 settled(float value) { return value != value ? NAN_BITS : bits_of(value); }
// The other number where one is NaN.
DEVICE float larger(float left, float right) {
    if (left != left) return right;
    return right > left ? right : left;
}
// The second where the first is NaN.
DEVICE float smaller(float value, float least) { return value < least ? value : least; }
DEVICE u32 more(u32 left, u32 right) { return left > right ? left : right; }
// Numbers of a block, the last of which may be short.
DEVICE u32 numbers(u64 len, u64 unit, u32 block) {
    u64 rest = len - unit * block;
    return rest < block ? (u32)rest : block;
}
DEVICE u32 read_word(const u8 *bytes) {
    return (u32)bytes[0] | (u32)bytes[1] << 8 | (u32)bytes[2] << 16 | (u32)bytes[3] << 24;
}
// Four lanes write a byte each.
DEVICE void put_word(u8 *bytes, u32 word, u32 lane) {
    if (lane < 4) bytes[lane] = (u8)(word >> (8 * lane));
}

// ---- Arithmetic, an element a thread.

DEVICE void set_scaled_at(const Work &work, u64 index) {
    // A copy keeps the bits, also those of NaN.
    const u32 *from = (const u32 *)work.from;
    u32 *to = (u32 *)work.to;
    u32 bits = from[index];
    to[index] = work.first == 1.0f ? bits : bits_of(work.first * number_of(bits));
}
ELEMENTS(set_scaled)

DEVICE void add_scaled_at(const Work &work, u64 index) {
    work.to[index] = work.to[index] + work.first * work.from[index];
}
ELEMENTS(add_scaled)

DEVICE void scale_at(const Work &work, u64 index) { work.to[index] = work.to[index] * work.first; }
ELEMENTS(scale)

DEVICE void direct_at(const Work &work, u64 index) {
    float progress = work.to[index];
    float velocity = work.second * work.beside[index] + progress;
    work.beside[index] = velocity;
    work.to[index] = work.first * (progress + work.second * velocity);
}
ELEMENTS(direct)

// ---- Reductions: a share becomes one number, of which `bytes` has `units`.

DEVICE u64 share_end(const Work &work, u64 unit) {
    u64 end = (unit + 1) * work.share;
    return end < work.len ? end : work.len;
}
DEVICE void squares_sum(const Work &work, u64 unit, u32 lane, Shared &shared) {
    u64 start = unit * work.share, end = share_end(work, unit);
    double sum = 0.0;
    for (u64 index = start + lane; index < end; index += LANES) {
        double value = (double)work.from[index];
        sum = sum + value * value;
    }
    shared.squares[lane] = sum;
}
DEVICE void squares_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    if (lane != 0) return;
    double sum = 0.0;
    for (u32 other = 0; other < LANES; other++) sum = sum + shared.squares[other];
    ((double *)work.bytes)[unit] = sum;
}
UNITS(squares, PHASE(squares_sum) PHASE(squares_put))

DEVICE void least_find(const Work &work, u64 unit, u32 lane, Shared &shared) {
    u64 start = unit * work.share, end = share_end(work, unit);
    float least = number_of(INFINITY_BITS);
    for (u64 at = start + lane; at < end; at += LANES) least = smaller(magnitude(work.from[at]), least);
    shared.sums[lane] = least;
}
DEVICE void least_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    if (lane != 0) return;
    float least = number_of(INFINITY_BITS);
    for (u32 other = 0; other < LANES; other++) least = smaller(shared.sums[other], least);
    ((float *)work.bytes)[unit] = least;
}
UNITS(least, PHASE(least_find) PHASE(least_put))

// ---- Blocks of 256.

DEVICE u32 lane_most(const Work &work, u64 unit, u32 lane, u32 block) {
    const float *values = work.from + unit * block;
    u32 len = numbers(work.len, unit, block);
    u32 most = 0;
    for (u32 at = lane; at < len; at += LANES) most = more(magnitude_bits(values[at]), most);
    return most;
}
DEVICE void block_find(const Work &work, u64 unit, u32 lane, Shared &shared) {
    shared.words[lane] = lane_most(work, unit, lane, BLOCK);
}
DEVICE void wide_find(const Work &work, u64 unit, u32 lane, Shared &shared) {
    shared.words[lane] = lane_most(work, unit, lane, MODULAR_BLOCK);
}
// The largest magnitude of the block, infinite or NaN if an element is.
DEVICE float block_most(const Shared &shared) {
    u32 most = 0;
    for (u32 other = 0; other < LANES; other++) most = more(shared.words[other], most);
    return number_of(most);
}
DEVICE float codes_per_unit(float top, float most) { return most < TINY ? 0.0f : top / most; }

// How far others are, by blocks of the modular codes; the second factor says whether zeros say that the other
// end could not read.
DEVICE void learn_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    if (lane != 0) return;
    float found = work.first * block_most(shared);
    float bound = work.to[unit];
    float unread = bound > 0.0f ? -SPREAD_WIDER * bound : 0.0f;
    float silent = work.second > 0.0f ? unread : bound;
    work.to[unit] = found > 0.0f ? larger(found, SPREAD_KEPT * magnitude(bound)) : silent;
}
UNITS(learn, PHASE(wide_find) PHASE(learn_put))

// ---- bf16, f16.

#define F16_NORMAL (113u << 23)
#define F16_OVERFLOW (143u << 23)
#define F16_BIAS (112u << 23)
#define HALF_BITS (126u << 23)

DEVICE u16 to_bf16(float value) {
    u32 bits = bits_of(value);
    u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    u32 quiet = (bits >> 16) | 0x40u;
    return (u16)(magnitude_bits(value) > INFINITY_BITS ? quiet : rounded);
}
DEVICE u16 to_f16(float value) {
    u32 bits = bits_of(value);
    u32 most = magnitude_bits(value);
    u32 odd = (most >> 13) & 1;
    u32 normal = (most - F16_BIAS + 0xfffu + odd) >> 13;
    u32 subnormal = bits_of(number_of(most) + number_of(HALF_BITS)) - HALF_BITS;
    u32 number = most < F16_NORMAL ? subnormal : normal;
    u32 other = most > INFINITY_BITS ? 0x7e00u : 0x7c00u;
    u32 code = most >= F16_OVERFLOW ? other : number;
    return (u16)(((bits >> 16) & 0x8000u) | code);
}
DEVICE u32 from_f16(u32 code) {
    u32 shifted = (code & 0x7fffu) << 13;
    u32 exponent = shifted & (0x1fu << 23);
    u32 normal = shifted + F16_BIAS;
    u32 subnormal = bits_of(number_of(shifted + F16_NORMAL) - number_of(F16_NORMAL));
    u32 number = exponent == 0 ? subnormal : normal;
    u32 bits = exponent == (0x1fu << 23) ? shifted | INFINITY_BITS : number;
    return bits | ((code & 0x8000u) << 16);
}

DEVICE void encode_bf16_at(const Work &work, u64 index) {
    ((u16 *)work.bytes)[index] = to_bf16(work.from[index]);
}
ELEMENTS(encode_bf16)
DEVICE void decode_bf16_at(const Work &work, u64 index) {
    ((u32 *)work.to)[index] = (u32)((const u16 *)work.bytes)[index] << 16;
}
ELEMENTS(decode_bf16)
DEVICE void encode_f16_at(const Work &work, u64 index) {
    ((u16 *)work.bytes)[index] = to_f16(work.from[index]);
}
ELEMENTS(encode_f16)
DEVICE void decode_f16_at(const Work &work, u64 index) {
    ((u32 *)work.to)[index] = from_f16(((const u16 *)work.bytes)[index]);
}
ELEMENTS(decode_f16)

// ---- int8.

#define INT8_BYTES (4 + BLOCK)

DEVICE void int8_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * BLOCK;
    u8 *bytes = work.bytes + unit * INT8_BYTES;
    u32 len = numbers(work.len, unit, BLOCK);
    float most = block_most(shared);
    float factor = codes_per_unit(127.0f, most);
    put_word(bytes, bits_of(most), lane);
    for (u32 index = lane; index < len; index += LANES) {
        bytes[4 + index] = (u8)settled(values[index] * factor + ROUND);
    }
}
UNITS(encode_int8, PHASE(block_find) PHASE(int8_put))

DEVICE void int8_read(const Work &work, u64 unit, u32 lane, Shared &) {
    float *values = work.to + unit * BLOCK;
    const u8 *bytes = work.bytes + unit * INT8_BYTES;
    u32 len = numbers(work.len, unit, BLOCK);
    float step = number_of(read_word(bytes)) / 127.0f;
    for (u32 index = lane; index < len; index += LANES) {
        values[index] = (float)(signed char)bytes[4 + index] * step;
    }
}
UNITS(decode_int8, PHASE(int8_read))

// ---- int4: a byte holds an element of the first half of the block and one of the second.

#define INT4_BYTES (4 + BLOCK / 2)

DEVICE u32 int4_code(float value, float factor) {
    return settled(value * factor + (ROUND + 8.0f)) & 15u;
}
DEVICE void int4_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * BLOCK;
    u8 *bytes = work.bytes + unit * INT4_BYTES;
    u32 len = numbers(work.len, unit, BLOCK);
    u32 half = (len + 1) / 2;
    float most = block_most(shared);
    float factor = codes_per_unit(7.0f, most);
    put_word(bytes, bits_of(most), lane);
    for (u32 index = lane; index < half; index += LANES) {
        u32 byte = int4_code(values[index], factor);
        if (half + index < len) byte |= int4_code(values[half + index], factor) << 4;
        bytes[4 + index] = (u8)byte;
    }
}
UNITS(encode_int4, PHASE(block_find) PHASE(int4_put))

DEVICE void int4_read(const Work &work, u64 unit, u32 lane, Shared &) {
    float *values = work.to + unit * BLOCK;
    const u8 *bytes = work.bytes + unit * INT4_BYTES;
    u32 len = numbers(work.len, unit, BLOCK);
    u32 half = (len + 1) / 2;
    float step = number_of(read_word(bytes)) / 7.0f;
    for (u32 index = lane; index < half; index += LANES) {
        u32 byte = bytes[4 + index];
        values[index] = ((float)(byte & 15u) - 8.0f) * step;
        if (half + index < len) values[half + index] = ((float)(byte >> 4) - 8.0f) * step;
    }
}
UNITS(decode_int4, PHASE(int4_read))

// ---- int2: blocks of 1024, two magnitudes, an element of every quarter in a byte.

#define INT2_BYTES (8 + INT2_BLOCK / 4)

DEVICE float total(const float *lanes) {
    float sum = 0.0f;
    for (u32 other = 0; other < LANES; other++) sum = sum + lanes[other];
    return sum;
}
DEVICE void int2_sum(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * INT2_BLOCK;
    u32 len = numbers(work.len, unit, INT2_BLOCK);
    float sum = 0.0f;
    for (u32 index = lane; index < len; index += LANES) sum = sum + magnitude(values[index]);
    shared.sums[lane] = sum;
}
DEVICE void int2_split(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * INT2_BLOCK;
    u32 len = numbers(work.len, unit, INT2_BLOCK);
    float threshold = total(shared.sums) / (float)len;
    float low = 0.0f, high = 0.0f;
    u32 above = 0;
    for (u32 index = lane; index < len; index += LANES) {
        float value = magnitude(values[index]);
        above += value > threshold;
        if (value > threshold) high = high + value;
        else low = low + value;
    }
    shared.lows[lane] = low;
    shared.highs[lane] = high;
    shared.words[lane] = above;
    if (lane == 0) shared.threshold = threshold;
}
DEVICE float mean(float sum, float count) { return count > 0.0f ? sum / count : 0.0f; }
DEVICE u32 int2_code(float value, float threshold) {
    return bits_of(value) >> 31 | (magnitude(value) > threshold ? 2u : 0u);
}
DEVICE void int2_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * INT2_BLOCK;
    u8 *bytes = work.bytes + unit * INT2_BYTES;
    u32 len = numbers(work.len, unit, INT2_BLOCK);
    u32 part = (len + 3) / 4;
    u32 count = 0;
    for (u32 other = 0; other < LANES; other++) count += shared.words[other];
    float above = (float)count;
    put_word(bytes, settled(mean(total(shared.lows), (float)len - above)), lane);
    put_word(bytes + 4, settled(mean(total(shared.highs), above)), lane);
    for (u32 position = lane; position < part; position += LANES) {
        u32 byte = 0;
        for (u32 quarter = 0; quarter < 4; quarter++) {
            u32 index = quarter * part + position;
            if (index < len) byte |= int2_code(values[index], shared.threshold) << (2 * quarter);
        }
        bytes[8 + position] = (u8)byte;
    }
}
UNITS(encode_int2, PHASE(int2_sum) PHASE(int2_split) PHASE(int2_put))

DEVICE void int2_read(const Work &work, u64 unit, u32 lane, Shared &) {
    u32 *values = (u32 *)work.to + unit * INT2_BLOCK;
    const u8 *bytes = work.bytes + unit * INT2_BYTES;
    u32 len = numbers(work.len, unit, INT2_BLOCK);
    u32 part = (len + 3) / 4;
    u32 low = read_word(bytes), high = read_word(bytes + 4);
    for (u32 position = lane; position < part; position += LANES) {
        u32 byte = bytes[8 + position];
        for (u32 quarter = 0; quarter < 4; quarter++) {
            u32 index = quarter * part + position;
            u32 code = byte >> (2 * quarter);
            if (index < len) values[index] = ((code & 2u) ? high : low) ^ (code << 31);
        }
    }
}
UNITS(decode_int2, PHASE(int2_read))

// ---- sign: blocks of 1024, one magnitude, an element of every eighth in a byte.

#define SIGN_BYTES (4 + SIGN_BLOCK / 8)

DEVICE void sign_sum(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * SIGN_BLOCK;
    u32 len = numbers(work.len, unit, SIGN_BLOCK);
    float sum = 0.0f;
    for (u32 index = lane; index < len; index += LANES) sum = sum + magnitude(values[index]);
    shared.sums[lane] = sum;
}
DEVICE void sign_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * SIGN_BLOCK;
    u8 *bytes = work.bytes + unit * SIGN_BYTES;
    u32 len = numbers(work.len, unit, SIGN_BLOCK);
    u32 part = (len + 7) / 8;
    put_word(bytes, settled(total(shared.sums) / (float)len), lane);
    for (u32 position = lane; position < part; position += LANES) {
        u32 byte = 0;
        for (u32 eighth = 0; eighth < 8; eighth++) {
            u32 index = eighth * part + position;
            if (index < len) byte |= (bits_of(values[index]) >> 31) << eighth;
        }
        bytes[4 + position] = (u8)byte;
    }
}
UNITS(encode_sign, PHASE(sign_sum) PHASE(sign_put))

DEVICE void sign_read(const Work &work, u64 unit, u32 lane, Shared &) {
    u32 *values = (u32 *)work.to + unit * SIGN_BLOCK;
    const u8 *bytes = work.bytes + unit * SIGN_BYTES;
    u32 len = numbers(work.len, unit, SIGN_BLOCK);
    u32 part = (len + 7) / 8;
    u32 mean = read_word(bytes);
    for (u32 position = lane; position < part; position += LANES) {
        u32 byte = bytes[4 + position];
        for (u32 eighth = 0; eighth < 8; eighth++) {
            u32 index = eighth * part + position;
            if (index < len) values[index] = mean ^ (byte >> eighth << 31);
        }
    }
}
UNITS(decode_sign, PHASE(sign_read))

// ---- modular: a short block counts as one that ends with zeros. Codes lie in planes of 8, 4, 2 and 1
// bits, as many as add up to theirs, the lowest bits first; a byte of a plane holds an element of each part.

// The integer nearest to a quotient below 2^22, in two's complement; anything for another.
DEVICE u32 integer(float quotient) { return settled(quotient + ROUND) - ROUND_BITS; }
// What the remainder of an integer leaves out.
DEVICE u32 left_out(u32 integer, u32 bits) { return (u32)((int)integer >> bits); }
// What element `index` counts in the hash.
DEVICE u32 hash_factor(u32 index) {
    u32 factor = 1, power = HASH_BASE;
    for (u32 exponent = index + 1; exponent != 0; exponent >>= 1) {
        if (exponent & 1) factor *= power;
        power *= power;
    }
    return factor;
}
// By how much that grows from one element of a lane to the next.
DEVICE u32 hash_growth() { return hash_factor(LANES - 1); }
DEVICE u32 hash_of(const Shared &shared) {
    u32 hash = 0;
    for (u32 other = 0; other < LANES; other++) hash += shared.hashes[other];
    return hash;
}
// Bytes of a plane.
DEVICE u32 plane_bytes(u32 len, u32 width) { return (len * width + 7) / 8; }
DEVICE u32 modular_bytes(u32 len, u32 bits) {
    u32 bytes = 8;
    for (u32 width = 8; width != 0; width >>= 1) bytes += bits & width ? plane_bytes(len, width) : 0;
    return bytes;
}
// Where the block begins.
DEVICE u8 *modular_block(const Work &work, u64 unit) {
    return work.bytes + unit * modular_bytes(MODULAR_BLOCK, (u32)work.share);
}
DEVICE float modular_step(float most, float spread, u32 bits) {
    float turn = (float)(1u << bits);
    float apart = turn / 2.0f - 0.5f - turn / 256.0f;
    float share = 1.0f / (float)(1u << (bits + SHARE_BITS));
    float step = larger(larger(magnitude(spread) / apart, most * share), TINY);
    return magnitude_bits(most) < INFINITY_BITS ? step : number_of(NAN_BITS);
}
DEVICE void modular_put(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *values = work.from + unit * MODULAR_BLOCK;
    u8 *bytes = modular_block(work, unit);
    u32 len = numbers(work.len, unit, MODULAR_BLOCK), bits = (u32)work.share;
    float step = modular_step(block_most(shared), work.beside[unit], bits);
    float per_step = 1.0f / step;
    u32 hash = 0, factor = hash_factor(lane), growth = hash_growth();
    for (u32 index = lane; index < MODULAR_BLOCK; index += LANES) {
        u32 whole = integer((index < len ? values[index] : 0.0f) * per_step);
        hash += left_out(whole, bits) * factor;
        factor *= growth;
    }
    u8 *plane = bytes + 8;
    u32 below = 0;
    for (u32 width = 8; width != 0; width >>= 1) {
        if (!(bits & width)) continue;
        u32 part = plane_bytes(len, width), mask = 0xffu >> (8 - width);
        for (u32 position = lane; position < part; position += LANES) {
            u32 byte = 0;
            for (u32 shift = 0, index = position; shift < 8 && index < len; shift += width) {
                byte |= ((integer(values[index] * per_step) >> below) & mask) << shift;
                index += part;
            }
            plane[position] = (u8)byte;
        }
        plane += part;
        below += width;
    }
    put_word(bytes, bits_of(step), lane);
    shared.hashes[lane] = hash;
}
DEVICE void modular_seal(const Work &work, u64 unit, u32 lane, Shared &shared) {
    put_word(modular_block(work, unit) + 4, hash_of(shared), lane);
}
UNITS(encode_modular, PHASE(wide_find) PHASE(modular_put) PHASE(modular_seal))

// The code of an element.
DEVICE u32 modular_code(const u8 *bytes, u32 index, u32 len, u32 bits) {
    const u8 *plane = bytes + 8;
    u32 below = 0, code = 0;
    for (u32 width = 8; width != 0; width >>= 1) {
        if (!(bits & width)) continue;
        u32 part = plane_bytes(len, width), mask = 0xffu >> (8 - width);
        code |= ((plane[index % part] >> (index / part * width)) & mask) << below;
        plane += part;
        below += width;
    }
    return code;
}
// The sender's integer: that of its remainder which is nearest to the own quotient.
DEVICE u32 unwrapped(u32 code, float own, u32 bits) {
    u32 above = integer(own + 0.5f);
    return above + (u32)((int)((code - above) << (32 - bits)) >> (32 - bits));
}
DEVICE void modular_hash(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *near = work.beside + unit * MODULAR_BLOCK;
    const u8 *bytes = modular_block(work, unit);
    u32 len = numbers(work.len, unit, MODULAR_BLOCK), bits = (u32)work.share;
    float per_step = 1.0f / number_of(read_word(bytes));
    u32 hash = 0, factor = hash_factor(lane), growth = hash_growth();
    for (u32 index = lane; index < MODULAR_BLOCK; index += LANES) {
        float own = index < len ? near[index] : 0.0f;
        u32 code = index < len ? modular_code(bytes, index, len, bits) : 0;
        hash += left_out(unwrapped(code, own * per_step, bits), bits) * factor;
        factor *= growth;
    }
    shared.hashes[lane] = hash;
}
// What is missing in the hash.
DEVICE u32 modular_missing(const u8 *bytes, const Shared &shared) {
    return read_word(bytes + 4) - hash_of(shared);
}
// Leaves the element, from 1, that alone is one turn too small, or too large in the highest bit.
DEVICE void modular_turn(const Work &work, u64 unit, u32 lane, Shared &shared) {
    u32 missing = modular_missing(modular_block(work, unit), shared);
    u32 found = 0, factor = hash_factor(lane), growth = hash_growth();
    for (u32 index = lane; missing != 0 && index < MODULAR_BLOCK; index += LANES) {
        if (factor == missing) found = index + 1;
        if (factor == 0u - missing) found = (index + 1) | 0x80000000u;
        factor *= growth;
    }
    shared.words[lane] = found;
}
DEVICE void modular_read(const Work &work, u64 unit, u32 lane, Shared &shared) {
    const float *near = work.beside + unit * MODULAR_BLOCK;
    float *values = work.to + unit * MODULAR_BLOCK;
    const u8 *bytes = modular_block(work, unit);
    u32 len = numbers(work.len, unit, MODULAR_BLOCK), bits = (u32)work.share;
    float step = number_of(read_word(bytes));
    float per_step = 1.0f / step;
    u32 turned = 0;
    for (u32 other = 0; other < LANES; other++) turned |= shared.words[other];
    bool sound = step > 0.0f && magnitude_bits(step) < INFINITY_BITS;
    bool read = sound && (turned != 0 || modular_missing(bytes, shared) == 0);
    if (!read && lane == 0) count_one(work.unread);
    for (u32 index = lane; index < len; index += LANES) {
        u32 code = modular_code(bytes, index, len, bits);
        u32 whole = unwrapped(code, near[index] * per_step, bits);
        if ((turned & 0x7fffffffu) == index + 1) {
            whole += turned >> 31 ? 0u - (1u << bits) : 1u << bits;
        }
        float value = (float)(int)whole * step;
        ((u32 *)values)[index] = read ? bits_of(value) : bits_of(near[index]);
    }
}
UNITS(decode_modular, PHASE(modular_hash) PHASE(modular_turn) PHASE(modular_read))
