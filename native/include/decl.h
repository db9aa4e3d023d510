/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole ABI of the storm engine, declarations only: cffi reads this file
 * as it is (no directives but integer #define), C includes it through gs.h.
 *
 * Times are CLOCK_MONOTONIC nanoseconds. Functions that return int give 0 or
 * a negative errno unless they say otherwise.
 */

#define GS_LAYOUT_VERSION 2
#define GS_OP_COUNT 12
#define GS_BUCKETS 1152
#define GS_ERRNOS 16
#define GS_CYCLE_MAX 64
#define GS_DEPTH_MAX 1048576
#define GS_TEXT 256

/* Same numbers as gdrstorm.model.op.Op; the wrapper checks it. */
enum gs_op {
	GS_OP_NONE = 0,
	GS_OP_ALLOC = 1,
	GS_OP_EXPORT = 2,
	GS_OP_REG = 3,
	GS_OP_REREG = 4,
	GS_OP_DEREG = 5,
	GS_OP_CLOSE = 6,
	GS_OP_FREE = 7,
	GS_OP_SYNC = 8,
	GS_OP_DELAY = 9,
	GS_OP_BARRIER = 10,
	GS_OP_CONTROL = 11
};

enum gs_order { GS_ORDER_FIFO = 0, GS_ORDER_LIFO = 1, GS_ORDER_RANDOM = 2 };

enum gs_share {
	GS_SHARE_NOTHING = 0,
	GS_SHARE_ALLOCATION = 1,
	GS_SHARE_BUFFER = 2
};

enum gs_state {
	GS_STATE_UNUSED = 0,
	GS_STATE_STARTING = 1,
	GS_STATE_READY = 2,
	GS_STATE_RUNNING = 3,
	GS_STATE_DONE = 4,
	GS_STATE_FAILED = 5
};

/* How the engine reaches a back end; meaning of the arguments: the back end. */
struct gs_binding {
	const char *backend;
	const int *fds;
	const int64_t *numbers;
	const uint64_t *addresses;
	uint32_t fd_count;
	uint32_t number_count;
	uint32_t address_count;
};

/* gdrstorm.engine.StormProgram. */
struct gs_program {
	const uint8_t *cycle;
	uint32_t cycle_length;
	uint32_t depth;
	uint32_t order;
	uint32_t share;
	uint32_t access;
	uint32_t rereg_access;
	uint32_t stop_on_error;
	uint64_t seed;
	uint64_t size_min;
	uint64_t size_max;
	uint64_t size_step;
	uint64_t offset_max;
	uint64_t length;
	uint64_t pacing_ns;
	uint64_t delay_ns;
	uint64_t duration_ns;
	uint64_t count;
};

/* Why gs_run_storm refused (op -1), or which set-up call failed: an operation,
 * or 0 for opening, pinning and the like, which the text names.
 */
struct gs_failure {
	int32_t op;
	int32_t error;
	char text[GS_TEXT];
};

/* One iteration of a thread: what is acquired, and which slot goes if the
 * window is full.
 */
struct gs_step {
	uint32_t slot;
	uint32_t victim;
	uint64_t size;
	uint64_t offset;
	uint64_t length;
};

struct gs_op_totals {
	uint64_t ok_count;
	uint64_t error_count;
	uint64_t ok_sum_ns;
	uint64_t error_sum_ns;
	uint64_t ok_min_ns;
	uint64_t ok_max_ns;
	uint64_t error_min_ns;
	uint64_t error_max_ns;
	uint64_t errno_other;
	uint64_t errno_count[GS_ERRNOS];
	uint32_t errno_value[GS_ERRNOS];
	uint64_t ok[GS_BUCKETS];
	uint64_t error[GS_BUCKETS];
};

struct gs_totals {
	uint64_t time_ns;
	uint64_t outstanding;
	uint64_t skipped;
	uint64_t leaked;
	struct gs_op_totals op[GS_OP_COUNT];
};

struct gs_latency {
	uint64_t min_ns;
	uint64_t mean_ns;
	uint64_t p50_ns;
	uint64_t p90_ns;
	uint64_t p99_ns;
	uint64_t p999_ns;
	uint64_t p9999_ns;
	uint64_t max_ns;
};

struct gs_call {
	uint32_t worker;
	uint32_t thread;
	int32_t tid;
	uint32_t op;
	uint32_t slot;
	uint64_t seq;
	uint64_t since_ns;
	uint64_t elapsed_ns;
};

struct gs_first_error {
	uint32_t op;
	uint32_t error;
	uint32_t worker;
	uint32_t thread;
	uint32_t slot;
	uint32_t access;
	uint64_t time_ns;
	uint64_t seq;
	uint64_t offset;
	uint64_t length;
};

struct gs_rate {
	uint32_t worker;
	uint32_t thread;
	int32_t tid;
	uint64_t count;
	uint64_t max_ns;
};

/* Shared area: one memfd, one single-writer block a thread. */
struct gs_area;

struct gs_area *gs_area_create(uint32_t threads, int *error);
struct gs_area *gs_area_attach(int fd, int *error);
void gs_area_close(struct gs_area *area);
int gs_area_fd(const struct gs_area *area);
uint32_t gs_area_threads(const struct gs_area *area);
void gs_area_start(struct gs_area *area);
void gs_area_stop(struct gs_area *area);
/* 1 all ready or further, 0 timeout, -1 a thread failed. */
int gs_area_wait_ready(struct gs_area *area, uint32_t first, uint32_t count,
		       uint64_t timeout_ns);
void gs_area_states(struct gs_area *area, uint32_t first, uint32_t count,
		    uint8_t *states);
void gs_area_totals(struct gs_area *area, uint32_t first, uint32_t count,
		    struct gs_totals *out);
uint32_t gs_area_calls(struct gs_area *area, uint32_t first, uint32_t count,
		       uint64_t min_age_ns, struct gs_call *out);
uint32_t gs_area_errors(struct gs_area *area, uint32_t first, uint32_t count,
			struct gs_first_error *out, uint32_t max);
void gs_area_rates(struct gs_area *area, uint32_t first, uint32_t count,
		   struct gs_rate *out);

/* newer -= older; extremes become those of the interval. */
void gs_totals_subtract(struct gs_totals *newer, const struct gs_totals *older);
void gs_latency_of(const uint64_t *buckets, uint64_t sum_ns, uint64_t min_ns,
		   uint64_t max_ns, struct gs_latency *out);
uint32_t gs_bucket(uint64_t ns);
uint64_t gs_bucket_low(uint32_t bucket);
uint64_t gs_bucket_high(uint32_t bucket);

/* The first steps of a thread's sequence; pure. */
void gs_sequence(const struct gs_program *program, uint32_t thread,
		 uint32_t count, struct gs_step *out);

/* Run a worker's threads to their end. -EINVAL with failure->op -1: refused. */
int gs_run_storm(struct gs_area *area, uint32_t worker, uint32_t first,
		 uint32_t threads, const struct gs_program *program,
		 const struct gs_binding *exporter,
		 const struct gs_binding *importer, const int *cpus,
		 uint32_t cpu_count, struct gs_failure *failure);

/* What times operations here: "tsc" or "clock_gettime". */
const char *gs_clock_name(void);

/* 1 when an exporter (kind 0) or importer (kind 1) of that name is built in. */
int gs_has_backend(int kind, const char *name);

/* Objects of the fake back ends alive after the last storm of this process:
 * 0 memory, 1 descriptors, 2 registrations, 3 protocol violations seen.
 */
int64_t gs_fake_live(int kind);
void gs_fake_reset(void);

/* libibverbs by dlopen, for the control path. Objects are opaque addresses;
 * makers return NULL and set *error to a positive errno, enders return a
 * positive errno or 0. ELIBACC: no libibverbs here.
 */
struct ibv_context;
struct ibv_pd;
struct ibv_mr;

struct gs_mr_keys {
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct ibv_context *gs_open_device(const char *name, int *error);
int gs_close_device(struct ibv_context *context);
struct ibv_pd *gs_alloc_pd(struct ibv_context *context, int *error);
int gs_dealloc_pd(struct ibv_pd *pd);
uint32_t gs_pd_handle(struct ibv_pd *pd);
/* The descriptor of another owner is duplicated; close ends the duplicate. */
struct ibv_context *gs_import_device(int cmd_fd, int *error);
struct ibv_pd *gs_import_pd(struct ibv_context *context, uint32_t handle,
			    int *error);
void gs_unimport_pd(struct ibv_pd *pd);
struct ibv_mr *gs_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			 uint32_t access, int *error);
struct ibv_mr *gs_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
				size_t length, uint64_t iova, int fd,
				uint32_t access, int *error);
int gs_rereg_mr(struct ibv_mr *mr, uint32_t flags, struct ibv_pd *pd,
		void *addr, size_t length, uint32_t access);
int gs_dereg_mr(struct ibv_mr *mr);
void gs_mr_keys(struct ibv_mr *mr, struct gs_mr_keys *out);
