package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/nearmetal/nearmetal/api"
)

// ScaleCluster changes the members of a group and returns the cluster as it is then: what was added is not there yet. Watch it to
// see it come. The same size again changes nothing and is no error.
func (c *Client) ScaleCluster(ctx context.Context, name string, req api.ScaleRequest) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/scale", req)
}

// PauseCluster asks for a cluster's members to be frozen; they are when its phase says so. Asking again is no error.
func (c *Client) PauseCluster(ctx context.Context, name string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/pause", nil)
}

// ResumeCluster asks for a paused cluster's members to be woken.
func (c *Client) ResumeCluster(ctx context.Context, name string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/resume", nil)
}

// SaveCluster asks for a cluster's members to be written to disk with their memory; they are when its phase says so. Asking again is no error.
func (c *Client) SaveCluster(ctx context.Context, name string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/save", nil)
}

// SaveFiles has an environment built of the files that a member of a cluster changed, and returns the build, pending. It takes until all files are read.
func (c *Client) SaveFiles(ctx context.Context, name string, req api.SaveFilesRequest) (api.Build, error) {
	var b api.Build
	resp, err := c.send(ctx, http.MethodPost, cluster(name)+"/save-files", nil, req)
	if err != nil {
		return b, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&b); err != nil {
		return b, &UnreachableError{c.addr, fmt.Errorf("its answer can't be read: %w", err)}
	}
	return b, nil
}

// RestoreCluster asks for a saved cluster's members to go on where they were.
func (c *Client) RestoreCluster(ctx context.Context, name string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/restore", nil)
}

// MigrateCluster requests that members of a cluster move to other nodes. The status reports its progress (Move).
func (c *Client) MigrateCluster(ctx context.Context, name string, req api.MigrateRequest) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/migrate", req)
}

// RebootCluster requests that members of a cluster boot again. The cluster's status shows the progress (Reboot).
func (c *Client) RebootCluster(ctx context.Context, name string, req api.RebootRequest) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/reboot", req)
}

// ResizeCluster requests another size of the members of a group. The status of each member shows the progress (Resizing).
func (c *Client) ResizeCluster(ctx context.Context, name string, req api.ResizeRequest) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/resize", req)
}

// Snapshots lists the snapshots of a cluster, the oldest first.
func (c *Client) Snapshots(ctx context.Context, name string) ([]api.Snapshot, error) {
	return items[api.Snapshot](ctx, c, cluster(name)+"/snapshots")
}

// CreateSnapshot requests a snapshot of a cluster. The cluster's status shows the progress (Snapshots).
func (c *Client) CreateSnapshot(ctx context.Context, name, snapshot string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/snapshots", api.SnapshotRequest{Name: snapshot})
}

// DeleteSnapshot requests the removal of a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, name, snapshot string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodDelete, cluster(name)+"/snapshots/"+url.PathEscape(snapshot), nil)
}

// RestoreSnapshot requests that a cluster goes back to a snapshot. The cluster's status shows the progress (SnapshotRestore).
func (c *Client) RestoreSnapshot(ctx context.Context, name, snapshot string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/snapshots/"+url.PathEscape(snapshot)+"/restore", nil)
}

// ExtendCluster makes the time limit of a cluster longer; the limit counts from when the cluster was placed.
func (c *Client) ExtendCluster(ctx context.Context, name string, limit api.Duration) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/extend", api.ExtendRequest{TimeLimit: limit})
}

// LabelCluster sets the labels that have a value, and removes those whose value is empty.
func (c *Client) LabelCluster(ctx context.Context, name string, labels map[string]string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, cluster(name)+"/labels", api.LabelsRequest{Labels: labels})
}

// ApplyCluster makes a cluster what the request says: it is created when there is none of the name. With dryRun nothing is changed, and
// the steps tell what would be. Name is the cluster's; the request's own name has to be the same.
func (c *Client) ApplyCluster(ctx context.Context, name string, req api.ClusterRequest, dryRun bool) (api.ApplyResult, error) {
	path := cluster(name)
	if dryRun {
		path += "?dry_run=true"
	}
	return answer[api.ApplyResult](ctx, c, http.MethodPut, path, req)
}

// Explain tells why a cluster is where it is, and its place in the queue.
func (c *Client) Explain(ctx context.Context, name string) (api.Explanation, error) {
	return answer[api.Explanation](ctx, c, http.MethodGet, cluster(name)+"/explain", nil)
}

// Queue lists what waits for room, the head first. Requests of other projects are among them without the names of their clusters and
// users, unless an administrator asks.
func (c *Client) Queue(ctx context.Context) ([]api.Waiting, error) {
	return items[api.Waiting](ctx, c, "/v1/queue")
}

// Certificate has a public key (a line as in authorized_keys) certified for a few minutes of logins to the members of a cluster.
func (c *Client) Certificate(ctx context.Context, name, publicKey string) (api.Certificate, error) {
	return answer[api.Certificate](ctx, c, http.MethodPost, cluster(name)+"/certificate", api.CertificateRequest{PublicKey: publicKey})
}
