/* SPDX-License-Identifier: MIT */
/* amdgpu_moonbright.h - what the rest of amdgpu has to call. DESIGN, compiled, never run. */
#ifndef AMDGPU_MOONBRIGHT_H
#define AMDGPU_MOONBRIGHT_H

struct amdgpu_device;
struct amdgpu_fpriv;
struct drm_device;
struct drm_file;

/* The ioctl; listed with DRM_RENDER_ALLOW, checks CAP_SYS_RAWIO itself. */
int amdgpu_mb_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
/* Before amdgpu_vm_fini(): by then KFD has stopped the queues, as it holds the file until it
 * has. */
void amdgpu_mb_release(struct amdgpu_device *adev, struct amdgpu_fpriv *fpriv);

#endif
