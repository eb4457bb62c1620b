/*
 * checks.h - may device tables be used here at all?
 *
 * One check per reason to refuse. Each is a question to the system (read-only) and a pure decision
 * on the answer; the decisions are what the unit tests test. A check ends in one verdict:
 *
 *     OK       nothing speaks against it
 *     REFUSED  device tables must stay off; the text says why and what to do
 *     UNKNOWN  the question could not be answered; counts as refused where a wrong guess could harm
 *              another process or write to the wrong memory, else as OK with the text as a remark
 *
 * Not detectable from here, and documented instead: a process in another pid namespace that shares
 * the GPU (the driver hides it); for that the exclusive check answers OK with a remark when this
 * process is itself inside a pid namespace.
 */
#ifndef MB_HW_NVRM_CHECKS_H
#define MB_HW_NVRM_CHECKS_H

#include "hw/nvrm/client.h"

enum nvrm_verdict { NVRM_VERDICT_OK, NVRM_VERDICT_REFUSED, NVRM_VERDICT_UNKNOWN };

enum nvrm_check_id {
    NVRM_CHECK_PRIVILEGE, /* CAP_SYS_ADMIN, effective, in the first user namespace */
    NVRM_CHECK_EXCLUSIVE, /* no other process has a context on the GPU */
    NVRM_CHECK_MIG,
    NVRM_CHECK_VIRTUAL,  /* vGPU guest or host */
    NVRM_CHECK_CC,       /* confidential computing, also protected PCIe and its developer mode */
    NVRM_CHECK_COHERENT, /* Grace and the like: memory shared with the CPU, ATS */
    NVRM_CHECK_MPS,
    NVRM_CHECK_COUNT,
};

struct nvrm_check {
    enum nvrm_verdict verdict;
    bool fatal;     /* it keeps device tables off (an UNKNOWN may be either) */
    char text[200]; /* one line; "" for a plain OK */
};

/* "privilege", "exclusive", ...; never NULL. */
const char *mb__nvrm_check_name(enum nvrm_check_id id);

/* Before a client exists: privilege alone, to give the shortest answer first. */
void mb__nvrm_check_privilege(struct nvrm_check *out);

/*
 * Runs all checks. MB_OK when none is fatal; else MB_ERR_PERMISSION for privilege, MB_ERR_BUSY for
 * exclusive, MB_ERR_NOT_SUPPORTED for the rest, with the first fatal one's text. `allow_shared`
 * makes a refusal of the exclusive check a remark: the caller takes the responsibility that 0xC2
 * views span the memory of other processes.
 */
enum mb_err mb__nvrm_checks_run(struct nvrm_client *client, bool allow_shared,
                                struct nvrm_check results[NVRM_CHECK_COUNT]);

/* ------------------------------------------------------------ decisions; pure */

enum { NVRM_CAP_SYS_ADMIN = 21 };

/* `effective` as capget() fills it; `uid_map` is the text of /proc/self/uid_map, NULL if
 * unreadable: root of a user namespace is not root for the driver. */
void mb__nvrm_decide_privilege(const uint32_t effective[2], const char *uid_map,
                               struct nvrm_check *out);

/* Other processes' ids on the GPU, `self` excluded. `pid_ns` is the link text of /proc/self/ns/pid
 * or NULL. */
void mb__nvrm_decide_exclusive(const uint32_t *pids, uint32_t count, uint32_t self,
                               const char *pid_ns, struct nvrm_check *out);

void mb__nvrm_decide_mig(uint32_t smc_mode, struct nvrm_check *out);
void mb__nvrm_decide_virtual(uint32_t mode, struct nvrm_check *out);
void mb__nvrm_decide_cc(const struct nvrm_abi_cc_caps *caps, struct nvrm_check *out);

struct nvrm_coherence {
    uint32_t ats, self_hosted, memory_mode; /* answers of GPU info; 0 if not asked */
    bool c2c_to_cpu;                        /* a chip-to-chip link to a CPU is up */
};
void mb__nvrm_decide_coherent(const struct nvrm_coherence *facts, struct nvrm_check *out);

struct nvrm_mps_facts {
    uint32_t clients_on_gpu; /* processes with an MPS object on the GPU */
    bool daemon_running;     /* a process named nvidia-cuda-mps* */
    bool pipe_exists;        /* the control pipe of $CUDA_MPS_PIPE_DIRECTORY or the default */
    bool env_set;            /* CUDA_MPS_PIPE_DIRECTORY is set */
};
void mb__nvrm_decide_mps(const struct nvrm_mps_facts *facts, struct nvrm_check *out);

/* ------------------------------------------------------------ the file system's view */

/*
 * Fallback for the exclusive check, if the driver does not answer: processes under `proc` ("/proc")
 * that have both /dev/nvidia<minor> and /dev/nvidia-uvm open. Up to `capacity` ids; *count is the
 * number found, and *unreadable how many processes could not be looked at.
 */
enum mb_err mb__nvrm_scan_users(const char *proc, uint32_t minor, uint32_t *pids, uint32_t capacity,
                                uint32_t *count, uint32_t *unreadable);
/* Whether a process whose name begins with `name` runs. */
bool mb__nvrm_scan_process(const char *proc, const char *name);

#endif
