/* query.c - see query.h. */
#include "hw/nvrm/query.h"

#include "base/err.h"

enum { APERTURE_VIDMEM = 0, FIFO_APERTURE_VIDMEM = 1 };
enum { PDB_LOW_WORD = 128, PDB_HIGH_WORD = 129 };

static enum mb_err ask(struct nvrm_client *client, struct nvrm_owner owner, nvrm_handle object,
                       uint32_t cmd, void *params, uint32_t bytes)
{
    if (owner.ctl_fd < 0)
        return mb__nvrm_control(client, object, cmd, params, bytes);
    return mb__nvrm_control_on(client, owner.ctl_fd, owner.client, object, cmd, params, bytes);
}

enum mb_err mb__nvrm_surface(struct nvrm_client *client, struct nvrm_owner owner,
                             nvrm_handle memory, uint64_t offset, struct nvrm_surface *out)
{
    struct nvrm_abi_surface_phys arg = {.offset = offset};
    enum mb_err err = ask(client, owner, memory, NVRM_CMD_SURFACE_PHYS, &arg, sizeof arg);

    if (err)
        return err;
    *out = (struct nvrm_surface){
        .phys = arg.offset,
        .contiguous = arg.contiguous,
        .kind = arg.format,
        .in_vidmem = arg.aperture == APERTURE_VIDMEM,
        .compressed = arg.compr_format != 0,
    };
    return MB_OK;
}

enum mb_err mb__nvrm_channel_instance(struct nvrm_client *client, struct nvrm_owner owner,
                                      nvrm_handle subdevice, nvrm_handle channel,
                                      struct nvrm_instance *out)
{
    struct nvrm_abi_channel_mem arg = {.channel = channel};
    enum mb_err err = ask(client, owner, subdevice, NVRM_CMD_CHANNEL_MEM, &arg, sizeof arg);

    if (err)
        return err;
    *out = (struct nvrm_instance){
        .phys = arg.instance.base,
        .bytes = arg.instance.bytes,
        .in_vidmem = arg.instance.aperture == FIFO_APERTURE_VIDMEM,
    };
    return MB_OK;
}

/* Low word: target 1:0 (0 is video memory), address 31:12; high word: address 63:32. */
bool mb__nvrm_instance_pdb(const volatile uint32_t *words, uint64_t *pdb)
{
    uint32_t low = words[PDB_LOW_WORD], high = words[PDB_HIGH_WORD];
    uint64_t base = (uint64_t)high << 32 | (low & 0xfffff000u);

    if ((low & 3u) != 0 || !base)
        return false;
    *pdb = base;
    return true;
}
