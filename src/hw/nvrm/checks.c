/* checks.c - see checks.h. The file system's view is in scan.c. */
#include "hw/nvrm/checks.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"

#define MPS_DEFAULT_DIRECTORY "/tmp/nvidia-mps"
#define MPS_PROCESS "nvidia-cuda-mps" /* server and control; the kernel keeps 15 characters */
#define FIRST_PID_NAMESPACE "pid:[4026531836]"

_Static_assert(NVRM_CAP_SYS_ADMIN == CAP_SYS_ADMIN, "capability number");

const char *mb__nvrm_check_name(enum nvrm_check_id id)
{
    static const char *const names[NVRM_CHECK_COUNT] = {
        [NVRM_CHECK_PRIVILEGE] = "privilege",
        [NVRM_CHECK_EXCLUSIVE] = "exclusive",
        [NVRM_CHECK_MIG] = "mig",
        [NVRM_CHECK_VIRTUAL] = "virtualization",
        [NVRM_CHECK_CC] = "confidential",
        [NVRM_CHECK_COHERENT] = "coherent",
        [NVRM_CHECK_MPS] = "mps",
    };

    return (unsigned)id < NVRM_CHECK_COUNT ? names[id] : "?";
}

static void pass(struct nvrm_check *out, const char *remark)
{
    *out = (struct nvrm_check){.verdict = NVRM_VERDICT_OK};
    snprintf(out->text, sizeof out->text, "%s", remark);
}

static void refuse(struct nvrm_check *out, const char *reason)
{
    *out = (struct nvrm_check){.verdict = NVRM_VERDICT_REFUSED, .fatal = true};
    snprintf(out->text, sizeof out->text, "%s", reason);
}

/* The driver's answer is missing; the thread's error text says why. */
static void unknown(struct nvrm_check *out, bool fatal)
{
    *out = (struct nvrm_check){.verdict = NVRM_VERDICT_UNKNOWN, .fatal = fatal};
    snprintf(out->text, sizeof out->text, "could not be found out: %s", mb_error_detail());
}

/* ------------------------------------------------------------ decisions */

/* The first user namespace maps every id to itself. */
static bool is_first_user_namespace(const char *uid_map)
{
    unsigned inside, outside, length;

    return uid_map && sscanf(uid_map, "%u %u %u", &inside, &outside, &length) == 3 && !inside &&
           !outside && length == UINT32_MAX;
}

void mb__nvrm_decide_privilege(const uint32_t effective[2], const char *uid_map,
                               struct nvrm_check *out)
{
    if (!(effective[NVRM_CAP_SYS_ADMIN / 32] >> NVRM_CAP_SYS_ADMIN % 32 & 1))
        refuse(out, "device tables need CAP_SYS_ADMIN: run as root, or in a container started with "
                    "that capability");
    else if (!is_first_user_namespace(uid_map))
        refuse(out, "CAP_SYS_ADMIN is only held inside a user namespace, which the driver does not "
                    "accept: run as root outside of it");
    else
        pass(out, "");
}

void mb__nvrm_decide_exclusive(const uint32_t *pids, uint32_t count, uint32_t self,
                               const char *pid_ns, struct nvrm_check *out)
{
    uint32_t others = 0, first = 0;
    char text[160];

    for (uint32_t i = 0; i < count; i++)
        if (pids[i] != self && others++ == 0)
            first = pids[i];
    if (others) {
        snprintf(text, sizeof text,
                 "%u other process%s on this GPU (pid %u%s); device tables need it alone: stop "
                 "them, or share it with force:yes at your own risk",
                 others, others == 1 ? "" : "es", first, others == 1 ? "" : ", ...");
        refuse(out, text);
    } else if (!pid_ns || strcmp(pid_ns, FIRST_PID_NAMESPACE) != 0) {
        pass(out, "alone as far as this pid namespace shows; processes outside of it are not seen");
    } else {
        pass(out, "");
    }
}

void mb__nvrm_decide_mig(uint32_t smc_mode, struct nvrm_check *out)
{
    enum { UNSUPPORTED, ENABLED, DISABLED, ENABLE_PENDING, DISABLE_PENDING };

    if (smc_mode == UNSUPPORTED || smc_mode == DISABLED || smc_mode == ENABLE_PENDING)
        pass(out, "");
    else
        refuse(out, smc_mode == ENABLED || smc_mode == DISABLE_PENDING
                        ? "MIG is on: device tables need the whole GPU"
                        : "the driver reports a MIG mode that MoonBright does not know");
}

void mb__nvrm_decide_virtual(uint32_t mode, struct nvrm_check *out)
{
    enum { BARE_METAL, PASS_THROUGH, VGPU_GUEST, VGPU_HOST, VSGA_HOST };

    if (mode == BARE_METAL || mode == PASS_THROUGH)
        pass(out, "");
    else
        refuse(out, mode == VGPU_GUEST  ? "the GPU is a vGPU: page tables belong to the host"
                    : mode == VGPU_HOST ? "the GPU serves vGPUs"
                    : mode == VSGA_HOST ? "the GPU is shared by a hypervisor (vSGA)"
                                        : "the driver reports an unknown virtualization mode");
}

void mb__nvrm_decide_cc(const struct nvrm_abi_cc_caps *caps, struct nvrm_check *out)
{
    if (caps->feature)
        refuse(out, "confidential computing is on: page tables and channels are protected");
    else if (caps->multi_gpu)
        refuse(out, "a protected multi-GPU mode (PPCIe or encrypted NVLink) is on");
    else if (caps->dev_tools)
        refuse(out, "confidential computing is on in its developer mode");
    else
        pass(out, "");
}

void mb__nvrm_decide_coherent(const struct nvrm_coherence *facts, struct nvrm_check *out)
{
    if (facts->self_hosted || facts->memory_mode || facts->c2c_to_cpu)
        refuse(out, "the GPU's memory is coherent with the CPU's (Grace or NVLink-C2C): entries "
                    "need forms that were not measured");
    else if (facts->ats)
        refuse(out, "the GPU translates through the CPU's page tables (ATS)");
    else
        pass(out, "");
}

void mb__nvrm_decide_mps(const struct nvrm_mps_facts *facts, struct nvrm_check *out)
{
    if (facts->clients_on_gpu)
        refuse(out, "MPS serves processes on this GPU: stop the MPS daemon");
    else if (facts->daemon_running && facts->pipe_exists)
        refuse(out, "an MPS daemon runs and CUDA would connect to it: stop it, or set "
                    "CUDA_MPS_PIPE_DIRECTORY to an empty directory");
    else if (facts->pipe_exists && facts->env_set)
        refuse(out, "CUDA_MPS_PIPE_DIRECTORY names a directory with an MPS control pipe: unset it");
    else
        pass(out, facts->pipe_exists ? "a control pipe of MPS exists, but no daemon runs" : "");
}

/* ------------------------------------------------------------ questions */

/* A small file or link under /proc; NULL if it cannot be read. */
static const char *read_small(const char *path, char *buffer, size_t bytes)
{
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(buffer, 1, bytes - 1, file) : 0;

    if (file)
        fclose(file);
    buffer[n] = '\0';
    return n ? buffer : NULL;
}

static const char *read_link(const char *path, char *buffer, size_t bytes)
{
    ssize_t n = readlink(path, buffer, bytes - 1);

    if (n <= 0)
        return NULL;
    buffer[n] = '\0';
    return buffer;
}

void mb__nvrm_check_privilege(struct nvrm_check *out)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    char uid_map[256];

    if (syscall(SYS_capget, &header, data)) {
        mb__fail(MB_ERR_PERMISSION, "capget: %s", strerror(errno));
        unknown(out, true);
        return;
    }
    uint32_t effective[2] = {data[0].effective, data[1].effective};
    mb__nvrm_decide_privilege(effective, read_small("/proc/self/uid_map", uid_map, sizeof uid_map),
                              out);
}

/* Adds the processes with an object of `class_id` on the GPU; the list may hold one several times.
 * */
static enum mb_err add_pids(struct nvrm_client *client, uint32_t class_id,
                            struct nvrm_abi_gpu_pids *scratch, uint32_t *pids, uint32_t *count)
{
    memset(scratch, 0, sizeof *scratch);
    scratch->id = class_id;
    enum mb_err err =
        mb__nvrm_control(client, client->subdevice, NVRM_CMD_GPU_PIDS, scratch, sizeof *scratch);
    for (uint32_t i = 0; !err && i < scratch->count && i < NVRM_PIDS_MAX; i++)
        pids[(*count)++] = scratch->pids[i];
    return err;
}

static void check_exclusive(struct nvrm_client *client, struct nvrm_check *out)
{
    const struct nvrm_arch *arch = client->arch;
    const uint32_t classes[] = {arch->compute_class, arch->copy_class, arch->graphics_class};
    enum { CLASSES = sizeof classes / sizeof classes[0] };
    struct nvrm_abi_gpu_pids scratch;
    uint32_t count = 0, unreadable = 0;
    char ns[64];

    uint32_t *pids = calloc((size_t)CLASSES * NVRM_PIDS_MAX, sizeof *pids);
    if (!pids) {
        mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of processes");
        unknown(out, true);
        return;
    }
    enum mb_err err = MB_OK;
    for (unsigned i = 0; !err && i < CLASSES; i++)
        err = add_pids(client, classes[i], &scratch, pids, &count);
    if (err)
        err = mb__nvrm_scan_users("/proc", client->minor, pids, CLASSES * NVRM_PIDS_MAX, &count,
                                  &unreadable);
    if (!err && unreadable)
        err = mb__fail(MB_ERR_PERMISSION, "%u processes could not be looked at", unreadable);
    if (err)
        unknown(out, true);
    else
        mb__nvrm_decide_exclusive(pids, count, (uint32_t)getpid(),
                                  read_link("/proc/self/ns/pid", ns, sizeof ns), out);
    free(pids);
}

static enum mb_err gpu_info(struct nvrm_client *client, uint32_t index, uint32_t *data)
{
    struct nvrm_abi_gpu_info info = {.count = 1, .list = {{.index = index}}};
    enum mb_err err = mb__nvrm_control(client, client->subdevice, NVRM_CMD_GPU_INFO, &info,
                                       client->series->gpu_info_bytes);

    if (!err)
        *data = info.list[0].data;
    return err;
}

static void check_mig(struct nvrm_client *client, struct nvrm_check *out)
{
    uint32_t mode = 0;

    if (gpu_info(client, NVRM_INFO_SMC_MODE, &mode))
        unknown(out, true);
    else
        mb__nvrm_decide_mig(mode, out);
}

static void check_virtual(struct nvrm_client *client, struct nvrm_check *out)
{
    struct nvrm_abi_virt_mode arg = {0};

    if (mb__nvrm_control(client, client->device, NVRM_CMD_VIRT_MODE, &arg, sizeof arg))
        unknown(out, true);
    else
        mb__nvrm_decide_virtual(arg.mode, out);
}

/* The object exists on systems where the feature could be on; a driver without it refuses the
 * class. */
static void check_cc(struct nvrm_client *client, struct nvrm_check *out)
{
    struct nvrm_abi_conf_compute params = {.client = client->root};
    struct nvrm_abi_cc_caps caps = {0};
    nvrm_handle object = 0;

    enum mb_err err = mb__nvrm_alloc(client, client->root, NVRM_CLASS_CONF_COMPUTE, &params,
                                     sizeof params, &object);
    if (err == MB_ERR_NOT_SUPPORTED) {
        pass(out, "");
        return;
    }
    if (!err)
        err = mb__nvrm_control(client, object, NVRM_CMD_CC_CAPABILITIES, &caps, sizeof caps);
    if (err)
        unknown(out, true);
    else
        mb__nvrm_decide_cc(&caps, out);
    mb__nvrm_free(client, client->root, object);
}

static void check_coherent(struct nvrm_client *client, struct nvrm_check *out)
{
    enum { REMOTE_IS_CPU = 1 };
    struct nvrm_coherence facts = {0};
    struct nvrm_abi_c2c_info link = {0};

    enum mb_err err = gpu_info(client, NVRM_INFO_ATS, &facts.ats);
    if (!err)
        err = gpu_info(client, NVRM_INFO_SELF_HOSTED, &facts.self_hosted);
    if (!err && client->series->coherent_mode_known)
        err = gpu_info(client, NVRM_INFO_COHERENT_MODE, &facts.memory_mode);
    if (err) {
        unknown(out, true);
        return;
    }
    /* A GPU without such links refuses this question, which is an answer. */
    if (!mb__nvrm_control(client, client->subdevice, NVRM_CMD_C2C_INFO, &link, sizeof link))
        facts.c2c_to_cpu = link.link_up && link.remote == REMOTE_IS_CPU;
    mb__nvrm_decide_coherent(&facts, out);
}

static void check_mps(struct nvrm_client *client, struct nvrm_check *out)
{
    const char *env = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct nvrm_abi_gpu_pids arg = {.id = NVRM_CLASS_MPS};
    struct nvrm_mps_facts facts = {
        .daemon_running = mb__nvrm_scan_process("/proc", MPS_PROCESS),
        .env_set = env != NULL,
    };
    char path[512];

    int n = snprintf(path, sizeof path, "%s/control", env ? env : MPS_DEFAULT_DIRECTORY);
    facts.pipe_exists = n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
    /* Should the driver not answer, the daemon and its pipe still show. */
    if (!mb__nvrm_control(client, client->subdevice, NVRM_CMD_GPU_PIDS, &arg, sizeof arg))
        facts.clients_on_gpu = arg.count;
    mb__nvrm_decide_mps(&facts, out);
}

/* ------------------------------------------------------------ all of them */

static enum mb_err refusal(enum nvrm_check_id id)
{
    switch (id) {
    case NVRM_CHECK_PRIVILEGE:
        return MB_ERR_PERMISSION;
    case NVRM_CHECK_EXCLUSIVE:
        return MB_ERR_BUSY;
    default:
        return MB_ERR_NOT_SUPPORTED;
    }
}

enum mb_err mb__nvrm_checks_run(struct nvrm_client *client, bool allow_shared,
                                struct nvrm_check results[NVRM_CHECK_COUNT])
{
    enum mb_err err = mb__nvrm_client_check(client);

    if (err)
        return err;
    mb__nvrm_check_privilege(&results[NVRM_CHECK_PRIVILEGE]);
    check_exclusive(client, &results[NVRM_CHECK_EXCLUSIVE]);
    check_mig(client, &results[NVRM_CHECK_MIG]);
    check_virtual(client, &results[NVRM_CHECK_VIRTUAL]);
    check_cc(client, &results[NVRM_CHECK_CC]);
    check_coherent(client, &results[NVRM_CHECK_COHERENT]);
    check_mps(client, &results[NVRM_CHECK_MPS]);
    if (allow_shared)
        results[NVRM_CHECK_EXCLUSIVE].fatal = false;
    for (unsigned i = 0; i < NVRM_CHECK_COUNT; i++)
        if (results[i].fatal)
            return mb__fail(refusal((enum nvrm_check_id)i), "device tables are off (%s): %s",
                            mb__nvrm_check_name((enum nvrm_check_id)i), results[i].text);
    return MB_OK;
}
