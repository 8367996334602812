/*
 * nearmetal-smp reads attributes of subnet management from many ports of an InfiniBand fabric in one process, several at once.
 *
 * Usage: nearmetal-smp WINDOW [ADAPTER PORT]
 *
 * Each line of standard input asks for one attribute: LID ATTRIBUTE MODIFIER, numbers as strtoul reads them; LID 0 is the own port, by directed
 * route. Each line of standard output answers one, in any order: INDEX ok HEX, with the 64 bytes of data, or INDEX error REASON. INDEX counts
 * the lines of input from 0. It sends nothing but Get (InfiniBand Architecture Specification 1.2.1, 13.4.5 and 14.2), so it can change nothing.
 *
 * The environment variable NEARMETAL_M_KEY is the M_Key that ports ask for (14.2.4).
 *
 * smpquery, of infiniband-diags, reads one table of one port per process. With 648 hosts that is 1,296 processes, which is a minute and more
 * where this takes a second. The library that it uses, libibumad, is loaded when the program runs, so building needs no header of it.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAD_BYTES   256
#define DATA_OFFSET 64
#define DATA_BYTES  64
#define CLASS_LID_ROUTED 0x01
#define CLASS_DIRECTED   0x81
#define PERMISSIVE_LID   0xffff
#define TIMEOUT_MS 300
#define TRIES      4
#define MOST_REQUESTS 200000

/* The functions of libibumad, with the types of its public header infiniband/umad.h (rdma-core 44). */
static struct {
	int (*init)(void);
	int (*open_port)(const char *ca, int port);
	int (*reg)(int fd, int mgmt_class, int version, uint8_t rmpp, long *mask);
	int (*send)(int fd, int agent, void *umad, int length, int timeout_ms, int retries);
	int (*recv)(int fd, void *umad, int *length, int timeout_ms);
	int (*set_addr)(void *umad, int lid, int qp, int sl, int qkey);
	int (*status)(void *umad);
	void *(*get_mad)(void *umad);
	size_t (*size)(void);
	int (*close_port)(int fd);
} lib;

static uint64_t key; /* the M_Key; 0: none */

struct request {
	unsigned lid, attribute, modifier;
	int tries;        /* that are left */
	int out;          /* 1: sent and not answered */
	int64_t sent_ms;
};

static void die(const char *what)
{
	fprintf(stderr, "nearmetal-smp: %s\n", what);
	exit(1);
}

static void load(void)
{
	void *so = dlopen("libibumad.so.3", RTLD_NOW | RTLD_GLOBAL);
	struct { const char *name; void **at; } symbols[] = {
		{"umad_init", (void **)&lib.init}, {"umad_open_port", (void **)&lib.open_port}, {"umad_register", (void **)&lib.reg},
		{"umad_send", (void **)&lib.send}, {"umad_recv", (void **)&lib.recv}, {"umad_set_addr", (void **)&lib.set_addr},
		{"umad_status", (void **)&lib.status}, {"umad_get_mad", (void **)&lib.get_mad}, {"umad_size", (void **)&lib.size},
		{"umad_close_port", (void **)&lib.close_port},
	};
	if (!so)
		die("libibumad.so.3 is not installed; install the package libibumad3");
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
		if (!(*symbols[i].at = dlsym(so, symbols[i].name)))
			die("libibumad.so.3 is of an unknown version");
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void put16(uint8_t *p, unsigned v) { p[0] = v >> 8; p[1] = v; }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16); put16(p + 2, v & 0xffff); }
static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

/* The transaction ID, whose upper half is the library's, says which request and which try it is. */
static void transmit(int fd, const int agents[2], void *umad, struct request *r, uint32_t index)
{
	uint8_t *mad = lib.get_mad(umad);
	int directed = r->lid == 0;

	memset(umad, 0, lib.size() + MAD_BYTES);
	mad[0] = 1; /* base version */
	mad[1] = directed ? CLASS_DIRECTED : CLASS_LID_ROUTED;
	mad[2] = 1; /* class version */
	mad[3] = 1; /* Get */
	put32(mad + 12, index);
	put16(mad + 16, r->attribute);
	put32(mad + 20, r->modifier);
	put32(mad + 24, key >> 32);
	put32(mad + 28, key & 0xffffffff);
	if (directed) {
		put16(mad + 32, PERMISSIVE_LID); /* DrSLID */
		put16(mad + 34, PERMISSIVE_LID); /* DrDLID */
	}
	lib.set_addr(umad, directed ? PERMISSIVE_LID : (int)r->lid, 0, 0, 0);
	r->out = 1;
	r->tries--;
	r->sent_ms = now_ms();
	if (lib.send(fd, agents[directed], umad, MAD_BYTES, TIMEOUT_MS, 0) < 0)
		r->sent_ms = 0; /* it times out at once */
}

static void answer(uint32_t index, const uint8_t *mad)
{
	unsigned status = (mad[4] << 8 | mad[5]) & 0x7fff; /* the upper bit is the direction of directed routes */

	if (status) {
		printf("%u error status 0x%04x\n", index, status);
		return;
	}
	printf("%u ok ", index);
	for (int i = 0; i < DATA_BYTES; i++)
		printf("%02x", mad[DATA_OFFSET + i]);
	putchar('\n');
}

static struct request *read_requests(uint32_t *count)
{
	struct request *all = NULL;
	uint32_t n = 0, room = 0;
	char line[128];

	while (fgets(line, sizeof line, stdin)) {
		char *p = line;
		struct request r = {.tries = TRIES};
		r.lid = strtoul(p, &p, 0);
		r.attribute = strtoul(p, &p, 0);
		r.modifier = strtoul(p, &p, 0);
		if (*p != '\n' || r.lid > 0xbfff || n == MOST_REQUESTS)
			die("a line of input is not: LID ATTRIBUTE MODIFIER");
		if (n == room && !(all = realloc(all, (room = 2 * room + 64) * sizeof *all)))
			die("out of memory");
		all[n++] = r;
	}
	*count = n;
	return all;
}

/* receive takes an answer, or waits a moment for one. */
static void receive(int fd, void *umad, struct request *all, uint32_t n, uint32_t *out)
{
	int length = MAD_BYTES;
	const uint8_t *mad = lib.get_mad(umad);

	memset(umad, 0, lib.size() + MAD_BYTES);
	if (lib.recv(fd, umad, &length, 20) < 0 || lib.status(umad) != 0)
		return; /* the try that the kernel gave up times out here as well */
	uint32_t index = get32(mad + 12);
	if (mad[3] != 0x81 || index >= n || !all[index].out) /* GetResp */
		return;
	all[index].out = 0;
	all[index].tries = -1;
	(*out)--;
	answer(index, mad);
}

int main(int argc, char **argv)
{
	uint32_t n = 0, next = 0, first = 0, out = 0, window;
	int agents[2], fd;
	void *umad;

	if (argc != 2 && argc != 4)
		die("usage: nearmetal-smp WINDOW [ADAPTER PORT]");
	window = strtoul(argv[1], NULL, 10);
	if (getenv("NEARMETAL_M_KEY"))
		key = strtoull(getenv("NEARMETAL_M_KEY"), NULL, 0);
	struct request *all = read_requests(&n);
	load();
	if (lib.init() < 0)
		die("no InfiniBand adapter is usable: umad_init failed (is the module ib_umad loaded?)");
	if ((fd = argc == 4 ? lib.open_port(argv[2], atoi(argv[3])) : lib.open_port(NULL, 0)) < 0)
		die("the adapter's port can't be opened: does it exist, and may this user open /dev/infiniband/umad*?");
	if ((agents[0] = lib.reg(fd, CLASS_LID_ROUTED, 1, 0, NULL)) < 0 || (agents[1] = lib.reg(fd, CLASS_DIRECTED, 1, 0, NULL)) < 0)
		die("the port refuses subnet management");
	if (!(umad = calloc(1, lib.size() + MAD_BYTES)))
		die("out of memory");
	while (first < n) {
		while (out < window && next < n) {
			transmit(fd, agents, umad, &all[next], next);
			next++, out++;
		}
		receive(fd, umad, all, n, &out);
		int64_t now = now_ms();
		for (uint32_t i = first; i < next; i++) {
			struct request *r = &all[i];
			if (r->out && now - r->sent_ms > TIMEOUT_MS + 20) {
				if (r->tries > 0) {
					transmit(fd, agents, umad, r, i);
				} else {
					r->out = 0;
					out--;
					printf("%u error no answer\n", i);
				}
			}
			if (i == first && !r->out)
				first++;
		}
	}
	if (fflush(stdout))
		return 1;
	lib.close_port(fd);
	return 0;
}
