/*
 * nearmetal-ucx.so lets ranks of Open MPI that run in members on one node exchange messages through memory.
 *
 * Open MPI has UCX find the fastest way to each peer. For peers that its launcher knows by other host names, as members are, it
 * publishes addresses without shared memory (pml_ucx.c, mca_pml_ucx_send_worker_address: UCP_WORKER_ADDRESS_FLAG_NET_ONLY), so UCX
 * never gets to see that they share it. This library, preloaded, takes that flag back. Whether two ranks share memory is then UCX's to
 * find out, pair by pair, as it does for every other program: by the namespaces they are in. The addresses grow by some 100 bytes.
 *
 * It is linked to nothing: dlsym is whatever the program has (in libdl before glibc 2.34), and it does nothing in programs without UCX.
 */
#include <stddef.h>
#include <stdint.h>

/* The head of ucp_worker_attr_t and its values, from UCX's public header ucp/api/ucp.h (1.13). */
struct worker_attr {
	uint64_t field_mask;
	int      thread_mode;
	uint32_t address_flags;
};
#define FIELD_ADDRESS_FLAGS (1u << 2)
#define ADDRESS_NET_ONLY    (1u << 0)

extern void *dlsym(void *handle, const char *symbol) __attribute__((weak));
#define RTLD_NEXT ((void *)-1L)
#define UCS_ERR_UNSUPPORTED (-22)

typedef int query(void *worker, struct worker_attr *attr);

int ucp_worker_query(void *worker, struct worker_attr *attr)
{
	query *next = dlsym == NULL ? NULL : (query *)dlsym(RTLD_NEXT, "ucp_worker_query");

	if (next == NULL)
		return UCS_ERR_UNSUPPORTED;
	if (attr->field_mask & FIELD_ADDRESS_FLAGS)
		attr->address_flags &= ~ADDRESS_NET_ONLY;
	return next(worker, attr);
}
