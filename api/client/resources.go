package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

func cluster(name string) string { return "/v1/clusters/" + url.PathEscape(name) }

func node(name string) string { return "/v1/nodes/" + url.PathEscape(name) }

func job(id string) string { return "/v1/jobs/" + url.PathEscape(id) }

func networkPath(name string) string { return "/v1/networks/" + url.PathEscape(name) }

// CreateCluster stores a new cluster and returns it, pending.
func (c *Client) CreateCluster(ctx context.Context, req api.ClusterRequest) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodPost, "/v1/clusters", req)
}

// Clusters lists all clusters by name.
func (c *Client) Clusters(ctx context.Context) ([]api.Cluster, error) {
	return items[api.Cluster](ctx, c, "/v1/clusters")
}

// Cluster returns one cluster.
func (c *Client) Cluster(ctx context.Context, name string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodGet, cluster(name), nil)
}

// ClusterTop returns what the members of a cluster use.
func (c *Client) ClusterTop(ctx context.Context, name string) ([]api.MemberTop, error) {
	list, err := answer[api.List[api.MemberTop]](ctx, c, http.MethodGet, cluster(name)+"/top", nil)
	return list.Items, err
}

// ClusterTrace returns where the time went when the newest cluster of a name was made and, if it is deleted, ended.
func (c *Client) ClusterTrace(ctx context.Context, name string) (api.Trace, error) {
	return answer[api.Trace](ctx, c, http.MethodGet, cluster(name)+"/trace", nil)
}

// DeleteCluster asks for a cluster to be deleted and returns it; it is gone when Cluster no longer finds it.
func (c *Client) DeleteCluster(ctx context.Context, name string) (api.Cluster, error) {
	return answer[api.Cluster](ctx, c, http.MethodDelete, cluster(name), nil)
}

// ClusterHome counts what the shared home of a cluster holds at this moment; it is deleted with the cluster.
func (c *Client) ClusterHome(ctx context.Context, name string) (api.HomeUsage, error) {
	return answer[api.HomeUsage](ctx, c, http.MethodGet, cluster(name)+"/home", nil)
}

// Events lists the kept events of a cluster after sequence number after.
func (c *Client) Events(ctx context.Context, name string, after int64) ([]api.Event, error) {
	return c.events(ctx, cluster(name)+"/events", after)
}

// eventsAtOnce is how many events one answer holds.
const eventsAtOnce = 250

// events lists events of a path, page by page.
func (c *Client) events(ctx context.Context, path string, after int64) ([]api.Event, error) {
	var all []api.Event
	for {
		page, err := items[api.Event](ctx, c, fmt.Sprintf("%s?after=%d&limit=%d", path, after, eventsAtOnce))
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < eventsAtOnce {
			return all, nil
		}
		after = page[len(page)-1].Seq
	}
}

// CreateJob stores a job on a cluster.
func (c *Client) CreateJob(ctx context.Context, name string, req api.JobRequest) (api.Job, error) {
	return answer[api.Job](ctx, c, http.MethodPost, cluster(name)+"/jobs", req)
}

// Jobs lists the jobs of a cluster, or of all when it is "".
func (c *Client) Jobs(ctx context.Context, name string) ([]api.Job, error) {
	path := "/v1/jobs"
	if name != "" {
		path += "?cluster=" + url.QueryEscape(name)
	}
	return items[api.Job](ctx, c, path)
}

// Job returns one job.
func (c *Client) Job(ctx context.Context, id string) (api.Job, error) {
	return answer[api.Job](ctx, c, http.MethodGet, job(id), nil)
}

// CancelJob asks a job to end.
func (c *Client) CancelJob(ctx context.Context, id string) (api.Job, error) {
	return answer[api.Job](ctx, c, http.MethodPost, job(id)+"/cancel", nil)
}

// Nodes lists all nodes by name.
func (c *Client) Nodes(ctx context.Context) ([]api.Node, error) {
	return items[api.Node](ctx, c, "/v1/nodes")
}

// Node returns one node.
func (c *Client) Node(ctx context.Context, name string) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodGet, node(name), nil)
}

// CheckHost has a node's agent check its host now.
func (c *Client) CheckHost(ctx context.Context, name string) (api.HostCheck, error) {
	return answer[api.HostCheck](ctx, c, http.MethodGet, node(name)+"/host-check", nil)
}

// CheckNetwork has the agents of a network's nodes check it now.
func (c *Client) CheckNetwork(ctx context.Context, name string) (api.NetworkCheck, error) {
	return answer[api.NetworkCheck](ctx, c, http.MethodGet, networkPath(name)+"/check", nil)
}

// TraceRequest is a packet to be followed. From and To are CLUSTER/MEMBER or addresses; Port is the destination port, or the type of an ICMP message.
type TraceRequest struct {
	From, To, Protocol string
	Port               int
}

// TracePacket follows a packet on a network.
func (c *Client) TracePacket(ctx context.Context, name string, r TraceRequest) (api.NetworkTrace, error) {
	query := url.Values{"from": {r.From}, "to": {r.To}, "protocol": {r.Protocol}}
	if r.Port != 0 {
		query.Set("port", strconv.Itoa(r.Port))
	}
	return answer[api.NetworkTrace](ctx, c, http.MethodGet, networkPath(name)+"/trace?"+query.Encode(), nil)
}

// DrainNode keeps new members off a node; those it has stay. Asking again is no error, and changes the reason if one is given.
func (c *Client) DrainNode(ctx context.Context, name, reason string) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, node(name)+"/drain", api.DrainRequest{Reason: reason})
}

// UndrainNode lets a node have new members again.
func (c *Client) UndrainNode(ctx context.Context, name string) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, node(name)+"/undrain", nil)
}

// AnnounceMaintenance announces a maintenance window of a node.
func (c *Client) AnnounceMaintenance(ctx context.Context, name string, req api.MaintenanceRequest) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, node(name)+"/maintenance", req)
}

// CancelMaintenance cancels a maintenance window of a node.
func (c *Client) CancelMaintenance(ctx context.Context, name, id string) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodDelete, node(name)+"/maintenance/"+url.PathEscape(id), nil)
}

// TrustNode makes a node a trusted builder: builds go there, and the site signs what it builds. Asking again is no error.
func (c *Client) TrustNode(ctx context.Context, name string) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, node(name)+"/trust", nil)
}

// UntrustNode makes a node a trusted builder no longer. Images that it has built stay.
func (c *Client) UntrustNode(ctx context.Context, name string) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, node(name)+"/untrust", nil)
}

// ApproveNode lets a node in that has enrolled.
func (c *Client) ApproveNode(ctx context.Context, name string) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, node(name)+"/approve", nil)
}

// RevokeNode takes a node's identity away: its agent is cut off at once.
func (c *Client) RevokeNode(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodPost, node(name)+"/revoke", nil, nil)
}

// ForgetNode takes a node out of the inventory, with its identity. It is refused while anything is held on it.
func (c *Client) ForgetNode(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, node(name), nil, nil)
}

// Networks returns all networks that the token may see, with their ports.
func (c *Client) Networks(ctx context.Context) ([]api.NetworkStatus, error) {
	return items[api.NetworkStatus](ctx, c, "/v1/networks")
}

// CreateNetwork makes a network of a project.
func (c *Client) CreateNetwork(ctx context.Context, req api.NetworkRequest) (api.NetworkStatus, error) {
	return answer[api.NetworkStatus](ctx, c, http.MethodPost, "/v1/networks", req)
}

// DeleteNetwork asks for the deletion of a project's network, by its name (project/NETWORK) or UID.
func (c *Client) DeleteNetwork(ctx context.Context, name string) (api.NetworkStatus, error) {
	return answer[api.NetworkStatus](ctx, c, http.MethodDelete, networkPath(name), nil)
}

// Fabrics returns all cells of the site by name.
func (c *Client) Fabrics(ctx context.Context) ([]api.Fabric, error) {
	return items[api.Fabric](ctx, c, "/v1/fabrics")
}

// Fabric returns one cell.
func (c *Client) Fabric(ctx context.Context, name string) (api.Fabric, error) {
	return answer[api.Fabric](ctx, c, http.MethodGet, fabric(name), nil)
}

// FabricEvents lists the kept events of a cell, the oldest first.
func (c *Client) FabricEvents(ctx context.Context, name string) ([]api.Event, error) {
	return c.events(ctx, fabric(name)+"/events", 0)
}

// FabricTopology returns the switches and links of a cell.
func (c *Client) FabricTopology(ctx context.Context, name string) (api.FabricTopology, error) {
	return answer[api.FabricTopology](ctx, c, http.MethodGet, fabric(name)+"/topology", nil)
}

// AuditFabric has a cell's tables read now.
func (c *Client) AuditFabric(ctx context.Context, name string) (api.FabricAudit, error) {
	return answer[api.FabricAudit](ctx, c, http.MethodGet, fabric(name)+"/audit", nil)
}

func fabric(name string) string { return "/v1/fabrics/" + url.PathEscape(name) }

// Datasets returns all datasets that the token may see.
func (c *Client) Datasets(ctx context.Context) ([]api.DatasetStatus, error) {
	return items[api.DatasetStatus](ctx, c, "/v1/datasets")
}

// CreateDataset makes a dataset of a project.
func (c *Client) CreateDataset(ctx context.Context, req api.DatasetRequest) (api.DatasetStatus, error) {
	return answer[api.DatasetStatus](ctx, c, http.MethodPost, "/v1/datasets", req)
}

// Dataset returns the dataset with a name (NAME or PROJECT.NAME) or UID.
func (c *Client) Dataset(ctx context.Context, name string) (api.DatasetStatus, error) {
	return answer[api.DatasetStatus](ctx, c, http.MethodGet, dataset(name), nil)
}

// ReplicateDataset has nodes keep a replica of a dataset.
func (c *Client) ReplicateDataset(ctx context.Context, name string, nodes []string) (api.DatasetStatus, error) {
	return answer[api.DatasetStatus](ctx, c, http.MethodPost, dataset(name)+"/replicate", api.DatasetNodes{Nodes: nodes})
}

// EvictDataset removes the replicas of a dataset from nodes; none: from all.
func (c *Client) EvictDataset(ctx context.Context, name string, nodes []string) (api.DatasetStatus, error) {
	return answer[api.DatasetStatus](ctx, c, http.MethodPost, dataset(name)+"/evict", api.DatasetNodes{Nodes: nodes})
}

// CheckDataset has all replicas of a dataset verified again.
func (c *Client) CheckDataset(ctx context.Context, name string) (api.DatasetStatus, error) {
	return answer[api.DatasetStatus](ctx, c, http.MethodPost, dataset(name)+"/check", nil)
}

// DeleteDataset deletes a dataset that no cluster asks for.
func (c *Client) DeleteDataset(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, dataset(name), nil, nil)
}

func dataset(name string) string { return "/v1/datasets/" + url.PathEscape(name) }

// SecurityGroups returns all security groups that the token may see.
func (c *Client) SecurityGroups(ctx context.Context) ([]api.SecurityGroupStatus, error) {
	return items[api.SecurityGroupStatus](ctx, c, "/v1/security-groups")
}

// CreateSecurityGroup makes a security group of a project.
func (c *Client) CreateSecurityGroup(ctx context.Context, req api.SecurityGroupRequest) (api.SecurityGroupStatus, error) {
	return answer[api.SecurityGroupStatus](ctx, c, http.MethodPost, "/v1/security-groups", req)
}

// SecurityGroup returns the security group with a name (NAME or PROJECT.NAME) or UID.
func (c *Client) SecurityGroup(ctx context.Context, name string) (api.SecurityGroupStatus, error) {
	return answer[api.SecurityGroupStatus](ctx, c, http.MethodGet, securityGroup(name), nil)
}

// ChangeNetworkRecords changes the records of a project's network.
func (c *Client) ChangeNetworkRecords(ctx context.Context, name string, change api.NetworkRecords) (api.NetworkStatus, error) {
	return answer[api.NetworkStatus](ctx, c, http.MethodPost, networkPath(name)+"/records", change)
}

// ChangeSecurityGroupRules changes the rules of a security group.
func (c *Client) ChangeSecurityGroupRules(ctx context.Context, name string, change api.SecurityGroupRules) (api.SecurityGroupStatus, error) {
	return answer[api.SecurityGroupStatus](ctx, c, http.MethodPost, securityGroup(name)+"/rules", change)
}

// DeleteSecurityGroup deletes a security group that nothing names.
func (c *Client) DeleteSecurityGroup(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, securityGroup(name), nil, nil)
}

func securityGroup(name string) string { return "/v1/security-groups/" + url.PathEscape(name) }

// Network returns the network with a name (CLUSTER, CLUSTER:NETWORK or project/NETWORK) or UID.
func (c *Client) Network(ctx context.Context, name string) (api.NetworkStatus, error) {
	return answer[api.NetworkStatus](ctx, c, http.MethodGet, networkPath(name), nil)
}

// Environments lists all environments by name.
func (c *Client) Environments(ctx context.Context) ([]api.Environment, error) {
	return items[api.Environment](ctx, c, "/v1/environments")
}

// Environment returns one environment.
func (c *Client) Environment(ctx context.Context, name string) (api.Environment, error) {
	return answer[api.Environment](ctx, c, http.MethodGet, environment(name), nil)
}

// Version returns what the server says about itself.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return answer[api.Version](ctx, c, http.MethodGet, "/v1/version", nil)
}

// Ready reports why the server can't serve. It returns nil if it can.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/readyz", nil, nil)
}

// JobLog copies the output of a job to w, from offset on, and returns how much that was. With follow it goes on until the
// job has ended, and comes back for the rest when the connection breaks and the server is there again.
func (c *Client) JobLog(ctx context.Context, id string, offset int64, follow bool, w io.Writer) (int64, error) {
	return c.copyLog(ctx, job(id)+"/log?", offset, follow, w)
}

// JobAttemptLog is JobLog for one attempt of a job, 0 for the first. With follow it goes on until that attempt is over.
func (c *Client) JobAttemptLog(ctx context.Context, id string, attempt int, offset int64, follow bool, w io.Writer) (int64, error) {
	return c.copyLog(ctx, job(id)+"/log?attempt="+strconv.Itoa(attempt)+"&", offset, follow, w)
}

// copyLog copies the log that address, which ends where parameters may be added, names.
func (c *Client) copyLog(ctx context.Context, address string, offset int64, follow bool, w io.Writer) (int64, error) {
	var copied int64
	retry, answered := newBackoff(), false
	for {
		path := address + "offset=" + strconv.FormatInt(offset+copied, 10)
		if follow {
			path += "&follow=true"
		}
		resp, err := c.send(ctx, http.MethodGet, path, nil, nil)
		if err == nil {
			answered = true
			sink := &sink{w: w}
			n, readErr := io.Copy(sink, resp.Body)
			copied += n
			resp.Body.Close()
			if sink.err != nil {
				return copied, sink.err
			}
			if n > 0 {
				retry.reset()
			}
			if err = readErr; err == nil {
				return copied, nil
			}
			err = &UnreachableError{c.addr, err}
		}
		if !follow || !transient(err, answered) {
			return copied, contextError(ctx, err)
		}
		if !retry.wait(ctx) {
			return copied, contextError(ctx, err)
		}
	}
}

// sink tells errors of writing from errors of reading.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		s.err = err
	}
	return n, err
}

// answer makes a request for one thing.
func answer[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var out T
	err := c.do(ctx, method, path, body, &out)
	return out, err
}

// items makes a request for a list.
func items[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var out api.List[T]
	err := c.do(ctx, http.MethodGet, path, nil, &out)
	return out.Items, err
}
