/* HMAC-SHA-256 (FIPS 180-4, RFC 2104), for proofs of a hundred bytes. */
#include "sockets.h"

#include <string.h>

enum { BLOCK = 64 };

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

struct hash {
  uint32_t state[8];
  uint8_t block[BLOCK];
  size_t filled;
  uint64_t size;
};

static uint32_t rotate(uint32_t value, int by) { return value >> by | value << (32 - by); }

static void compress(struct hash *hash) {
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; i++) {
    const uint8_t *at = hash->block + 4 * i;
    w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
  }
  for (int i = 16; i < 64; i++) {
    uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(s, hash->state, sizeof s);
  for (int i = 0; i < 64; i++) {
    uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]), majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    uint32_t one = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + choice + round_constants[i] + w[i];
    uint32_t two = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + majority;
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += one;
    s[0] = one + two;
  }
  for (int i = 0; i < 8; i++) hash->state[i] += s[i];
  hash->filled = 0;
}

static struct hash begin(void) {
  return (struct hash){
      .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void add(struct hash *hash, const uint8_t *data, size_t size) {
  hash->size += size;
  for (size_t i = 0; i < size; i++) {
    hash->block[hash->filled++] = data[i];
    if (hash->filled == BLOCK) compress(hash);
  }
}

static void finish(struct hash *hash, uint8_t digest[DIGEST]) {
  uint64_t bits = hash->size * 8;
  const uint8_t one = 0x80, zero = 0;
  add(hash, &one, 1);
  while (hash->filled != BLOCK - 8) add(hash, &zero, 1);
  for (int i = 7; i >= 0; i--) {
    uint8_t byte = (uint8_t)(bits >> 8 * i);
    add(hash, &byte, 1);
  }
  for (int i = 0; i < DIGEST; i++) digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac_sha256(const uint8_t *key, size_t key_size, const uint8_t *data, size_t size, uint8_t digest[DIGEST]) {
  uint8_t inner[BLOCK], outer[BLOCK]; /* the key has at most BLOCK bytes */
  for (size_t i = 0; i < BLOCK; i++) {
    uint8_t byte = i < key_size ? key[i] : 0;
    inner[i] = byte ^ 0x36;
    outer[i] = byte ^ 0x5c;
  }
  struct hash hash = begin();
  add(&hash, inner, BLOCK);
  add(&hash, data, size);
  finish(&hash, digest);
  hash = begin();
  add(&hash, outer, BLOCK);
  add(&hash, digest, DIGEST);
  finish(&hash, digest);
}
