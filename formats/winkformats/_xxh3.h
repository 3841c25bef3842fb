/* XXH3-64 of one run of bytes, seeded or not: written from the public specification of xxHash.
 *
 * Short runs are scalar. From 241 bytes on eight lanes of 64 bits are added up side by side: the
 * compiler makes vectors of them, on x86-64 with glibc for the processor that it runs on.
 */
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian processors only: others take the path in Python"
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) \
    && !defined(WINKFS_PLAIN)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87u
#define P64_2 0xC2B2AE3D27D4EB4Fu
#define P64_3 0x165667B19E3779F9u
#define P64_4 0x85EBCA77C2B2AE63u
#define P64_5 0x27D4EB2F165667C5u

#define SECRET 192 /* bytes */
#define STRIPE 64
#define STRIPES ((SECRET - STRIPE) / 8) /* of a block */
#define FETCHED 4096 /* bytes of a long run that are brought in ahead, past a page, where the processor
                      stops: 14 GB/s from memory, not 8 */

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint32_t le32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint64_t le64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t rotated(uint64_t h, int bits)
{
    return h << bits | h >> (64 - bits);
}

static inline uint64_t avalanche(uint64_t h)
{
    h = (h ^ h >> 37) * 0x165667919E3779F9u;
    return h ^ h >> 32;
}

static inline uint64_t avalanche_short(uint64_t h)
{
    h = (h ^ h >> 33) * P64_2;
    h = (h ^ h >> 29) * P64_3;
    return h ^ h >> 32;
}

static inline uint64_t mix16(const uint8_t *p, const uint8_t *key, uint64_t seed)
{
    return fold(le64(p) ^ (le64(key) + seed), le64(p + 8) ^ (le64(key + 8) - seed));
}

static inline uint64_t xxh3_upto16(const uint8_t *p, size_t n, uint64_t seed)
{
    if (n > 8) {
        uint64_t low = le64(p) ^ ((le64(secret + 24) ^ le64(secret + 32)) + seed);
        uint64_t high = le64(p + n - 8) ^ ((le64(secret + 40) ^ le64(secret + 48)) - seed);
        return avalanche(n + __builtin_bswap64(low) + high + fold(low, high));
    }
    if (n >= 4) {
        seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
        uint64_t both = le32(p + n - 4) + ((uint64_t)le32(p) << 32);
        uint64_t h = both ^ ((le64(secret + 8) ^ le64(secret + 16)) - seed);
        h = (h ^ rotated(h, 49) ^ rotated(h, 24)) * 0x9FB21C651E98DF25u;
        h = (h ^ ((h >> 35) + n)) * 0x9FB21C651E98DF25u;
        return h ^ h >> 28;
    }
    if (n) {
        uint32_t all = (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24 | p[n - 1] | (uint32_t)n << 8;
        return avalanche_short(all ^ ((le32(secret) ^ le32(secret + 4)) + seed));
    }
    return avalanche_short(seed ^ le64(secret + 56) ^ le64(secret + 64));
}

static inline uint64_t xxh3_upto240(const uint8_t *p, size_t n, uint64_t seed)
{
    uint64_t h = n * P64_1;
    if (n <= 128) {
        for (size_t i = (n - 1) / 32 + 1; i-- > 0;) {
            h += mix16(p + 16 * i, secret + 32 * i, seed);
            h += mix16(p + n - 16 * (i + 1), secret + 32 * i + 16, seed);
        }
        return avalanche(h);
    }
    for (size_t i = 0; i < 8; i++)
        h += mix16(p + 16 * i, secret + 16 * i, seed);
    h = avalanche(h);
    for (size_t i = 8; i < n / 16; i++)
        h += mix16(p + 16 * i, secret + 16 * (i - 8) + 3, seed);
    return avalanche(h + mix16(p + n - 16, secret + 136 - 17, seed));
}

static inline void accumulate(uint64_t *lanes, const uint8_t *p, const uint8_t *key)
{
    uint64_t value[8], mixed[8];
    memcpy(value, p, STRIPE);
    memcpy(mixed, key, STRIPE);
    for (int i = 0; i < 8; i++)
        mixed[i] ^= value[i];
    for (int i = 0; i < 8; i++)
        lanes[i] += value[i ^ 1] + (mixed[i] & 0xFFFFFFFFu) * (mixed[i] >> 32);
}

/* Of n bytes at p; the first stripe may lie elsewhere: that is `first`, and not looked at in p. */
CLONES static uint64_t xxh3_long(const uint8_t *first, const uint8_t *p, size_t n, uint64_t seed)
{
    uint8_t key[SECRET];
    for (int i = 0; i < SECRET; i += 16) {
        uint64_t low = le64(secret + i) + seed, high = le64(secret + i + 8) - seed;
        memcpy(key + i, &low, 8);
        memcpy(key + i + 8, &high, 8);
    }
    uint64_t lanes[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    const uint8_t *at = p, *last = p + n - STRIPE;
    size_t left = (n - 1) / STRIPE; /* stripes before the last, which may overlap them */
    bool ahead = n > FETCHED;
    while (left) {
        size_t some = left < STRIPES ? left : STRIPES;
        accumulate(lanes, at == p ? first : at, key);
        for (size_t i = 1; i < some; i++) {
            if (ahead)
                __builtin_prefetch(at + STRIPE * i + FETCHED);
            accumulate(lanes, at + STRIPE * i, key + 8 * i);
        }
        at += STRIPE * some;
        left -= some;
        if (some == STRIPES)
            for (int i = 0; i < 8; i++)
                lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ le64(key + SECRET - STRIPE + 8 * i)) * P32_1;
    }
    accumulate(lanes, last, key + SECRET - STRIPE - 7);
    uint64_t h = n * P64_1;
    for (int i = 0; i < 8; i += 2)
        h += fold(lanes[i] ^ le64(key + 11 + 8 * i), lanes[i + 1] ^ le64(key + 19 + 8 * i));
    return avalanche(h);
}

static inline uint64_t xxh3(const uint8_t *p, size_t n, uint64_t seed)
{
    return n <= 16 ? xxh3_upto16(p, n, seed)
         : n <= 240 ? xxh3_upto240(p, n, seed)
                    : xxh3_long(p, p, n, seed);
}

/* Of a head of less than a stripe and a body of more than 240 bytes, as if they were one run. */
static inline uint64_t xxh3_two(const uint8_t *head, size_t m, const uint8_t *body, size_t n,
                                uint64_t seed)
{
    uint8_t first[STRIPE];
    memcpy(first, head, m);
    memcpy(first + m, body, STRIPE - m);
    return xxh3_long(first, body - m, m + n, seed);
}
