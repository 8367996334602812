package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/nearmetal/nearmetal/api"
)

// Volumes returns all volumes that the token may see, also those that are deleted and not yet purged.
func (c *Client) Volumes(ctx context.Context) ([]api.VolumeStatus, error) {
	return items[api.VolumeStatus](ctx, c, "/v1/volumes")
}

// CreateVolume makes a volume of a project. It returns before the volume is ready.
func (c *Client) CreateVolume(ctx context.Context, req api.VolumeRequest) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodPost, "/v1/volumes", req)
}

// Volume returns the volume with a name (NAME or PROJECT.NAME) or UID.
func (c *Client) Volume(ctx context.Context, name string) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodGet, volumePath(name), nil)
}

// ChangeVolume changes the size, files, access or retention of a volume.
func (c *Client) ChangeVolume(ctx context.Context, name string, change api.VolumeChange) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodPatch, volumePath(name), change)
}

// DeleteVolume deletes a volume that nothing has attached. It is kept for its retention, unless it is to be purged now.
func (c *Client) DeleteVolume(ctx context.Context, name string, now bool) (api.VolumeStatus, error) {
	path := volumePath(name)
	if now {
		path += "?now=true"
	}
	return answer[api.VolumeStatus](ctx, c, http.MethodDelete, path, nil)
}

// GiveUpVolumeImport deletes a volume that still waits for its backup, at once. A volume that has become whole is refused (volume_not_importing).
func (c *Client) GiveUpVolumeImport(ctx context.Context, name string) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodDelete, volumePath(name)+"/content", nil)
}

// UndeleteVolume takes back the deletion of a volume.
func (c *Client) UndeleteVolume(ctx context.Context, name string) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodPost, volumePath(name)+"/undelete", nil)
}

// AttachVolume requests that all members of a cluster get a volume. The status of each member shows the progress (VolumeChanges).
func (c *Client) AttachVolume(ctx context.Context, clusterName string, a api.VolumeAttachment) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(clusterName)+"/volumes", a)
}

// AddLayer requests that all members of a cluster get the own layer of an environment. The cluster's status shows the progress (Layers).
func (c *Client) AddLayer(ctx context.Context, clusterName string, l api.Layer) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(clusterName)+"/layers", l)
}

// RemoveLayer requests that all members of a cluster let go of a layer. The cluster's status shows the progress (Layers).
func (c *Client) RemoveLayer(ctx context.Context, clusterName, environment string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodDelete, cluster(clusterName)+"/layers/"+url.PathEscape(environment), nil)
}

// SetCondition requests that what all members of a cluster send has a condition, in place of another. The cluster's status shows the progress (Condition).
func (c *Client) SetCondition(ctx context.Context, clusterName string, condition api.NetworkCondition) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPut, cluster(clusterName)+"/condition", condition)
}

// ClearCondition requests that what members of a cluster send has no condition. The cluster's status shows the progress (Condition).
func (c *Client) ClearCondition(ctx context.Context, clusterName string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodDelete, cluster(clusterName)+"/condition", nil)
}

// DetachVolume requests that all members of a cluster let go of a volume. The cluster's status shows the progress (DetachingVolumes).
func (c *Client) DetachVolume(ctx context.Context, clusterName, volume string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodDelete, cluster(clusterName)+"/volumes/"+url.PathEscape(volume), nil)
}

// VolumeSnapshots returns the snapshots of a volume, the oldest first.
func (c *Client) VolumeSnapshots(ctx context.Context, name string) ([]api.VolumeSnapshot, error) {
	return items[api.VolumeSnapshot](ctx, c, volumePath(name)+"/snapshots")
}

// CreateVolumeSnapshot makes a snapshot of a volume. It returns before the snapshot is there.
func (c *Client) CreateVolumeSnapshot(ctx context.Context, name, snapshot string) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodPost, volumePath(name)+"/snapshots", api.VolumeSnapshotRequest{Name: snapshot})
}

// DeleteVolumeSnapshot deletes a snapshot of a volume.
func (c *Client) DeleteVolumeSnapshot(ctx context.Context, name, snapshot string) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodDelete, volumeSnapshotPath(name, snapshot), nil)
}

// RestoreVolume makes a volume hold again what it held in a snapshot. It returns before that is done.
func (c *Client) RestoreVolume(ctx context.Context, name, snapshot string) (api.VolumeStatus, error) {
	return answer[api.VolumeStatus](ctx, c, http.MethodPost, volumeSnapshotPath(name, snapshot)+"/restore", nil)
}

func volumePath(name string) string { return "/v1/volumes/" + url.PathEscape(name) }

func volumeSnapshotPath(name, snapshot string) string {
	return volumePath(name) + "/snapshots/" + url.PathEscape(snapshot)
}
