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

func environment(name string) string { return "/v1/environments/" + url.PathEscape(name) }

func build(id string) string { return "/v1/builds/" + url.PathEscape(id) }

// forced adds the parameter force to an address.
func forced(path string, force bool) string {
	if force {
		return path + "?force=true"
	}
	return path
}

// EnrollNode takes a machine in whose power and boot are the site's from then on, and returns its node.
func (c *Client) EnrollNode(ctx context.Context, req api.EnrollRequest) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, "/v1/nodes", req)
}

// PatchMachine changes what the patch names of power control, console, firmware, labels and password of a machine.
func (c *Client) PatchMachine(ctx context.Context, name string, patch api.MergePatch) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPatch, node(name), patch)
}

// InspectNode asks for a machine's hardware to be looked at. It is refused without force while members run on it.
func (c *Client) InspectNode(ctx context.Context, name string, force bool) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, forced(node(name)+"/inspect", force), nil)
}

// PowerNodes asks for the power of several machines, up to 100 of them together or not at all, and returns their nodes. Each node's
// Machine.Request has the number to wait for in Machine.Record.DoneRequest.
func (c *Client) PowerNodes(ctx context.Context, req api.NodesPowerRequest) ([]api.Node, error) {
	list, err := answer[api.List[api.Node]](ctx, c, http.MethodPost, "/v1/power", req)
	return list.Items, err
}

// CleanNodes asks for machines to be cleaned of what a tenant left, and returns their nodes. Each node's Machine.Clean has the number to wait for in
// Machine.Record.DoneClean. It is refused while members run on one of them.
func (c *Client) CleanNodes(ctx context.Context, req api.NodesCleanRequest) ([]api.Node, error) {
	list, err := answer[api.List[api.Node]](ctx, c, http.MethodPost, "/v1/clean", req)
	return list.Items, err
}

// HoldNode quarantines a machine, so that nobody gets it, or releases it.
func (c *Client) HoldNode(ctx context.Context, name string, req api.NodeHoldRequest) (api.Node, error) {
	return answer[api.Node](ctx, c, http.MethodPost, node(name)+"/hold", req)
}

// RemoveNode takes a machine out of the site: it is powered off and then gone (Node no longer finds it). It is refused without force while
// members run on it. Another node than a machine is forgotten at once, as by ForgetNode.
func (c *Client) RemoveNode(ctx context.Context, name string, force bool) error {
	return c.do(ctx, http.MethodDelete, forced(node(name), force), nil, nil)
}

// NodeEvents lists the kept events of a machine, the oldest first.
func (c *Client) NodeEvents(ctx context.Context, name string) ([]api.Event, error) {
	return c.events(ctx, node(name)+"/events", 0)
}

// BMCLogin returns the login at a machine's BMC.
func (c *Client) BMCLogin(ctx context.Context, name string) (api.BMCLogin, error) {
	return answer[api.BMCLogin](ctx, c, http.MethodGet, node(name)+"/bmc-login", nil)
}

// ConsoleLogin returns the login at a machine's console for its present boot.
func (c *Client) ConsoleLogin(ctx context.Context, name string) (api.ConsoleLogin, error) {
	return answer[api.ConsoleLogin](ctx, c, http.MethodGet, node(name)+"/console-login", nil)
}

// ConnectConsole opens a byte stream to a machine's serial console. ctx bounds the opening, not the stream.
func (c *Client) ConnectConsole(ctx context.Context, name string) (*Tunnel, error) {
	return c.tunnel(ctx, node(name)+"/console")
}

// Candidates lists the strangers that wait to be taken in, by MAC.
func (c *Client) Candidates(ctx context.Context) ([]api.Candidate, error) {
	return items[api.Candidate](ctx, c, "/v1/candidates")
}

// EnrollTokens lists the enrollment tokens, without their secrets.
func (c *Client) EnrollTokens(ctx context.Context) ([]api.EnrollmentToken, error) {
	return items[api.EnrollmentToken](ctx, c, "/v1/enroll-tokens")
}

// CreateEnrollToken makes an enrollment token. Only the answer has its secret.
func (c *Client) CreateEnrollToken(ctx context.Context, req api.EnrollTokenRequest) (api.EnrollmentToken, error) {
	return answer[api.EnrollmentToken](ctx, c, http.MethodPost, "/v1/enroll-tokens", req)
}

// DeleteEnrollToken makes an enrollment token void at once.
func (c *Client) DeleteEnrollToken(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, "/v1/enroll-tokens/"+url.PathEscape(id), nil, nil)
}

// CheckEnvironment reports where an environment can run: on nodeName, or on all nodes if nodeName is "".
func (c *Client) CheckEnvironment(ctx context.Context, name, nodeName string) (api.EnvironmentCheck, error) {
	path := environment(name) + "/check"
	if nodeName != "" {
		path += "?node=" + url.QueryEscape(nodeName)
	}
	return answer[api.EnvironmentCheck](ctx, c, http.MethodGet, path, nil)
}

// DeleteEnvironment deletes a built environment. It is refused while it is in use and, without force, where machines can't be taken in without it.
func (c *Client) DeleteEnvironment(ctx context.Context, name string, force bool) error {
	return c.do(ctx, http.MethodDelete, forced(environment(name), force), nil, nil)
}

// CreateBuild asks for a build of an environment and returns it, pending.
func (c *Client) CreateBuild(ctx context.Context, req api.BuildRequest) (api.Build, error) {
	return answer[api.Build](ctx, c, http.MethodPost, "/v1/builds", req)
}

// Builds lists all builds, the oldest first, without their recipes.
func (c *Client) Builds(ctx context.Context) ([]api.Build, error) {
	return items[api.Build](ctx, c, "/v1/builds")
}

// Build returns one build.
func (c *Client) Build(ctx context.Context, id string) (api.Build, error) {
	return answer[api.Build](ctx, c, http.MethodGet, build(id), nil)
}

// CancelBuild asks a build to end.
func (c *Client) CancelBuild(ctx context.Context, id string) (api.Build, error) {
	return answer[api.Build](ctx, c, http.MethodPost, build(id)+"/cancel", nil)
}

// BuildLog copies the output of an attempt at a build to w, from offset on, and returns how much that was. With follow it goes on until
// that attempt is over.
func (c *Client) BuildLog(ctx context.Context, id string, attempt int, offset int64, follow bool, w io.Writer) (int64, error) {
	return c.copyLog(ctx, build(id)+"/log?attempt="+strconv.Itoa(attempt)+"&", offset, follow, w)
}

// Recipes lists the recipes that come with the product, without their texts.
func (c *Client) Recipes(ctx context.Context) ([]api.Recipe, error) {
	return items[api.Recipe](ctx, c, "/v1/recipes")
}

// Recipe returns a recipe that comes with the product.
func (c *Client) Recipe(ctx context.Context, name string) (api.Recipe, error) {
	return answer[api.Recipe](ctx, c, http.MethodGet, "/v1/recipes/"+url.PathEscape(name), nil)
}

// tunnel opens a byte stream at an address that is upgraded.
func (c *Client) tunnel(ctx context.Context, path string) (*Tunnel, error) {
	return c.tunnelBy(ctx, http.MethodGet, path)
}

func (c *Client) tunnelBy(ctx context.Context, method, path string) (*Tunnel, error) {
	if err := checkNames(path); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("server address %q: %w", c.addr, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", tunnelProtocol)
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &UnreachableError{c.addr, err}
	}
	t, err := c.upgrade(ctx, conn, req)
	if err != nil {
		_ = conn.Close() // the error that matters is why there is no tunnel
		return nil, err
	}
	return t, nil
}
