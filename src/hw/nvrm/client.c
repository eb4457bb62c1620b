/*
 * client.c - see client.h.
 *
 * Order of opening: version, control file, cross check of the version, root client, GPU file,
 * device, subdevice. Each step has its undo in reverse; closing takes the same path. The device
 * object must come after the GPU file, since opening that file is what attaches the GPU.
 */
#include "hw/nvrm/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/nvrm/status.h"

#define VERSION_FILE "/proc/driver/nvidia/version"
#define CTL_FILE "/dev/nvidiactl"

enum { FIRST_HANDLE = 0x5000f000, VERSION_TEXT_BYTES = 1024 };

/* ------------------------------------------------------------ raw calls */

enum mb_err mb__nvrm_client_check(const struct nvrm_client *client)
{
    if (!mb__nvrm_fork_guard_is_child(&client->guard))
        return MB_OK;
    return mb__fail(MB_ERR_FORKED,
                    "this process is a fork of process %d, which owns the GPU client; a child must "
                    "open its own device after exec",
                    client->guard.owner);
}

enum mb_err mb__nvrm_status_check(uint32_t status, const char *format, ...)
{
    char what[200];
    va_list args;

    if (status == NVRM_STATUS_OK)
        return MB_OK;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return mb__fail(mb__nvrm_status_err(status), "%s: status 0x%x %s%s", what, status,
                    mb__nvrm_status_name(status),
                    status == NVRM_STATUS_NO_PERMISSION
                        ? "; it needs CAP_SYS_ADMIN, run as root or use driver tables"
                        : "");
}

static enum mb_err call(const struct nvrm_os *os, int fd, unsigned escape, void *arg, size_t bytes,
                        const char *what)
{
    int rc = os->ioctl(os, fd, mb__nvrm_escape_request(escape, bytes), arg);

    if (!rc)
        return MB_OK;
    return mb__fail(mb__nvrm_errno_err(-rc), "%s: ioctl 0x%02x: %s", what, escape, strerror(-rc));
}

enum mb_err mb__nvrm_escape(struct nvrm_client *client, unsigned escape, void *arg, size_t bytes,
                            const char *what)
{
    enum mb_err err = mb__nvrm_client_check(client);

    return err ? err : call(client->os, client->ctl_fd, escape, arg, bytes, what);
}

static nvrm_handle new_handle(struct nvrm_client *client)
{
    mb__lock(&client->lock);
    nvrm_handle handle = client->next_handle++;
    mb__unlock(&client->lock);
    return handle;
}

enum mb_err mb__nvrm_alloc(struct nvrm_client *client, nvrm_handle parent, uint32_t class_id,
                           void *params, uint32_t params_bytes, nvrm_handle *object)
{
    struct nvrm_abi_alloc arg = {
        .client = client->root,
        .parent = parent,
        .class_id = class_id,
        .params = (uintptr_t)params,
        .params_bytes = params_bytes,
    };
    char what[80];
    enum mb_err err = mb__nvrm_client_check(client);

    if (err)
        return err;
    /* The driver names the root client; every other object has the name that we give. */
    arg.object = class_id == NVRM_CLASS_ROOT ? 0 : new_handle(client);
    snprintf(what, sizeof what, "RM alloc of class 0x%04x (%s)", class_id,
             mb__nvrm_class_name(class_id));
    err = call(client->os, client->ctl_fd, NVRM_ESC_ALLOC, &arg, sizeof arg, what);
    if (!err)
        err = mb__nvrm_status_check(arg.status, "%s", what);
    if (!err)
        *object = arg.object;
    return err;
}

void mb__nvrm_escape_quiet(struct nvrm_client *client, unsigned escape, void *arg, size_t bytes)
{
    if (!mb__nvrm_fork_guard_is_child(&client->guard))
        client->os->ioctl(client->os, client->ctl_fd, mb__nvrm_escape_request(escape, bytes), arg);
}

void mb__nvrm_free(struct nvrm_client *client, nvrm_handle parent, nvrm_handle object)
{
    struct nvrm_abi_free arg = {.client = client->root, .parent = parent, .object = object};

    if (object)
        mb__nvrm_escape_quiet(client, NVRM_ESC_FREE, &arg, sizeof arg);
}

enum mb_err mb__nvrm_control_on(struct nvrm_client *client, int ctl_fd, nvrm_handle foreign_client,
                                nvrm_handle object, uint32_t cmd, void *params,
                                uint32_t params_bytes)
{
    struct nvrm_abi_control arg = {
        .client = foreign_client,
        .object = object,
        .cmd = cmd,
        .params = (uintptr_t)params,
        .params_bytes = params_bytes,
    };
    char what[96];
    enum mb_err err = mb__nvrm_client_check(client);

    if (err)
        return err;
    snprintf(what, sizeof what, "RM control 0x%08x (%s) on object 0x%x", cmd,
             mb__nvrm_cmd_name(cmd), object);
    err = call(client->os, ctl_fd, NVRM_ESC_CONTROL, &arg, sizeof arg, what);
    return err ? err : mb__nvrm_status_check(arg.status, "%s", what);
}

enum mb_err mb__nvrm_control(struct nvrm_client *client, nvrm_handle object, uint32_t cmd,
                             void *params, uint32_t params_bytes)
{
    return mb__nvrm_control_on(client, client->ctl_fd, client->root, object, cmd, params,
                               params_bytes);
}

enum mb_err mb__nvrm_dup(struct nvrm_client *client, nvrm_handle parent, nvrm_handle src_client,
                         nvrm_handle src_object, nvrm_handle *object)
{
    struct nvrm_abi_dup arg = {
        .client = client->root,
        .parent = parent,
        .src_client = src_client,
        .src_object = src_object,
    };
    enum mb_err err = mb__nvrm_client_check(client);

    if (err)
        return err;
    arg.object = new_handle(client);
    err = call(client->os, client->ctl_fd, NVRM_ESC_DUP_OBJECT, &arg, sizeof arg, "RM dup");
    if (!err)
        err = mb__nvrm_status_check(arg.status, "RM dup of object 0x%x of client 0x%x", src_object,
                                    src_client);
    if (!err)
        *object = arg.object;
    return err;
}

/* ------------------------------------------------------------ objects */

void mb__nvrm_object_link(struct nvrm_client *client, struct nvrm_object *object,
                          void (*destroy)(struct nvrm_object *object))
{
    object->destroy = destroy;
    mb__lock(&client->lock);
    object->next = &client->objects;
    object->prev = client->objects.prev;
    object->prev->next = object;
    object->next->prev = object;
    mb__unlock(&client->lock);
}

void mb__nvrm_object_unlink(struct nvrm_client *client, struct nvrm_object *object)
{
    /* A child of fork() may have inherited the lock in a locked state and is alone anyway. */
    bool child = mb__nvrm_fork_guard_is_child(&client->guard);

    if (!child)
        mb__lock(&client->lock);
    object->prev->next = object->next;
    object->next->prev = object->prev;
    object->prev = object->next = object;
    if (!child)
        mb__unlock(&client->lock);
}

static void destroy_objects(struct nvrm_client *client)
{
    while (client->objects.prev != &client->objects) {
        struct nvrm_object *newest = client->objects.prev;
        newest->destroy(newest);
    }
}

/* ------------------------------------------------------------ opening */

static enum mb_err read_version(const char *text, struct nvrm_version *out)
{
    char buffer[VERSION_TEXT_BYTES];

    if (text)
        return mb__nvrm_version_parse(text, out);
    FILE *file = fopen(VERSION_FILE, "re");
    if (!file)
        return mb__fail(MB_ERR_NO_DEVICE,
                        VERSION_FILE ": %s; the NVIDIA kernel module is not loaded",
                        strerror(errno));
    size_t n = fread(buffer, 1, sizeof buffer - 1, file);
    fclose(file);
    buffer[n] = '\0';
    return mb__nvrm_version_parse(buffer, out);
}

static enum mb_err open_file(const struct nvrm_os *os, const char *path, int *fd)
{
    int rc = os->open(os, path, O_RDWR | O_CLOEXEC);

    if (rc < 0)
        return mb__fail(mb__nvrm_errno_err(-rc), "%s: %s", path, strerror(-rc));
    *fd = rc;
    return MB_OK;
}

/* The file under /proc may belong to another module than the one that answers. */
static enum mb_err cross_check_version(struct nvrm_client *client)
{
    struct nvrm_abi_version arg = {.cmd = NVRM_VERSION_QUERY};
    enum mb_err err =
        mb__nvrm_escape(client, NVRM_ESC_CHECK_VERSION, &arg, sizeof arg, "version query");

    if (err)
        return err;
    arg.text[sizeof arg.text - 1] = '\0';
    if (arg.reply != 1 || strcmp(arg.text, client->version.text) != 0)
        return mb__fail(MB_ERR_DRIVER,
                        "the loaded driver says it is \"%s\", " VERSION_FILE " says \"%s\"; reload "
                        "the driver",
                        arg.text, client->version.text);
    return MB_OK;
}

static enum mb_err query_uuid(struct nvrm_client *client, uint32_t gpu_id, uint8_t *uuid)
{
    struct nvrm_abi_gpu_uuid arg = {.gpu_id = gpu_id, .flags = NVRM_UUID_BINARY};
    enum mb_err err = mb__nvrm_control(client, client->root, NVRM_CMD_GPU_UUID, &arg, sizeof arg);

    if (err)
        return err;
    if (arg.length < NVRM_UUID_BYTES)
        return mb__fail(MB_ERR_DRIVER, "the GPU's UUID has %u bytes, expected %d", arg.length,
                        NVRM_UUID_BYTES);
    memcpy(uuid, arg.uuid, NVRM_UUID_BYTES);
    return MB_OK;
}

static bool card_is_wanted(struct nvrm_client *client, const struct nvrm_client_request *request,
                           const struct nvrm_abi_card *card)
{
    uint8_t uuid[NVRM_UUID_BYTES];

    switch (request->select) {
    case NVRM_BY_MINOR:
        return card->minor == request->minor;
    case NVRM_BY_PCI:
        return card->pci_domain == request->pci_domain && card->pci_bus == request->pci_bus &&
               card->pci_slot == request->pci_slot;
    case NVRM_BY_UUID:
        /* Only attached GPUs answer; the one that CUDA uses is. */
        return query_uuid(client, card->gpu_id, uuid) == MB_OK &&
               memcmp(uuid, request->uuid, sizeof uuid) == 0;
    }
    return false;
}

static enum mb_err find_card(struct nvrm_client *client, const struct nvrm_client_request *request)
{
    struct nvrm_abi_card cards[NVRM_MAX_CARDS];
    unsigned valid = 0;

    memset(cards, 0, sizeof cards);
    enum mb_err err = mb__nvrm_escape(client, NVRM_ESC_CARD_INFO, cards, sizeof cards, "card list");
    if (err)
        return err;
    for (unsigned i = 0; i < NVRM_MAX_CARDS; i++) {
        if (!cards[i].valid)
            continue;
        valid++;
        if (!card_is_wanted(client, request, &cards[i]))
            continue;
        client->gpu_id = cards[i].gpu_id;
        client->minor = cards[i].minor;
        client->pci_domain = cards[i].pci_domain;
        client->pci_bus = cards[i].pci_bus;
        client->pci_slot = cards[i].pci_slot;
        return MB_OK;
    }
    return mb__fail(MB_ERR_NO_DEVICE, "no GPU of that %s among the %u of the driver",
                    request->select == NVRM_BY_MINOR ? "minor number"
                    : request->select == NVRM_BY_PCI ? "PCI address"
                                                     : "UUID (it must be in use by CUDA already)",
                    valid);
}

static enum mb_err open_gpu(struct nvrm_client *client)
{
    char path[32];
    struct nvrm_abi_register_fd reg = {.ctl_fd = client->ctl_fd};
    struct nvrm_abi_gpu_id_info info = {.gpu_id = client->gpu_id};

    snprintf(path, sizeof path, "/dev/nvidia%u", client->minor);
    enum mb_err err = open_file(client->os, path, &client->gpu_fd);
    if (!err)
        err = call(client->os, client->gpu_fd, NVRM_ESC_REGISTER_FD, &reg, sizeof reg,
                   "registration of the GPU file");
    if (!err)
        err = mb__nvrm_control(client, client->root, NVRM_CMD_GPU_ID_INFO, &info, sizeof info);
    if (!err)
        err = query_uuid(client, client->gpu_id, client->uuid);
    if (err)
        return err;
    client->device_instance = info.device_instance;
    client->subdevice_instance = info.subdevice_instance;
    return MB_OK;
}

static enum mb_err make_device(struct nvrm_client *client)
{
    struct nvrm_abi_device device = {.instance = client->device_instance,
                                     .client_share = client->root};
    struct nvrm_abi_subdevice subdevice = {.instance = client->subdevice_instance};
    struct nvrm_abi_arch_info info = {0};

    enum mb_err err = mb__nvrm_alloc(client, client->root, NVRM_CLASS_DEVICE, &device,
                                     sizeof device, &client->device);
    if (!err)
        err = mb__nvrm_alloc(client, client->device, NVRM_CLASS_SUBDEVICE, &subdevice,
                             sizeof subdevice, &client->subdevice);
    if (!err)
        err = mb__nvrm_control(client, client->subdevice, NVRM_CMD_ARCH_INFO, &info, sizeof info);
    return err ? err : mb__nvrm_arch_find(info.architecture, info.implementation, &client->arch);
}

static enum mb_err open_steps(struct nvrm_client *client, const struct nvrm_client_request *request)
{
    enum mb_err err = read_version(request->version_text, &client->version);

    if (!err)
        err = mb__nvrm_series_find(client->version.major, &client->series);
    if (!err)
        err = open_file(client->os, CTL_FILE, &client->ctl_fd);
    if (!err)
        err = cross_check_version(client);
    if (!err)
        err = mb__nvrm_alloc(client, 0, NVRM_CLASS_ROOT, NULL, 0, &client->root);
    if (!err)
        err = find_card(client, request);
    if (!err)
        err = open_gpu(client);
    if (!err)
        err = make_device(client);
    return err;
}

enum mb_err mb__nvrm_client_open(const struct nvrm_client_request *request,
                                 struct nvrm_client **out)
{
    struct nvrm_client *client = calloc(1, sizeof *client);

    if (!client)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a GPU client");
    client->os = request->os ? request->os : &mb__nvrm_os_system;
    client->ctl_fd = client->gpu_fd = -1;
    client->next_handle = FIRST_HANDLE;
    client->objects.prev = client->objects.next = &client->objects;
    if (mb__lock_init(&client->lock, "nvrm client", MB_RANK_LEAF)) {
        free(client);
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a GPU client's lock");
    }
    mb__nvrm_fork_guard_init(&client->guard);

    enum mb_err err = open_steps(client, request);
    if (err) {
        mb__nvrm_client_close(&client);
        return err;
    }
    *out = client;
    return MB_OK;
}

void mb__nvrm_client_close(struct nvrm_client **client_in_out)
{
    struct nvrm_client *client = *client_in_out;

    *client_in_out = NULL;
    if (!client)
        return;
    destroy_objects(client);
    /* Freeing the root would free the rest too; the explicit order is the reverse of make_device().
     * */
    mb__nvrm_free(client, client->device, client->subdevice);
    mb__nvrm_free(client, client->root, client->device);
    mb__nvrm_free(client, client->root, client->root);
    if (client->gpu_fd >= 0)
        client->os->close(client->os, client->gpu_fd);
    if (client->ctl_fd >= 0)
        client->os->close(client->os, client->ctl_fd);
    mb__nvrm_fork_guard_fini(&client->guard);
    mb__lock_destroy(&client->lock);
    free(client);
}
