package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func project(name string) string { return "/v1/projects/" + url.PathEscape(name) }

// Whoami returns the identity that the server sees in the caller.
func (c *Client) Whoami(ctx context.Context) (api.Identity, error) {
	return answer[api.Identity](ctx, c, http.MethodGet, "/v1/whoami", nil)
}

// Projects lists the projects the caller may see, by name, with what they hold.
func (c *Client) Projects(ctx context.Context) ([]api.ProjectStatus, error) {
	return items[api.ProjectStatus](ctx, c, "/v1/projects")
}

// Project returns one project.
func (c *Client) Project(ctx context.Context, name string) (api.ProjectStatus, error) {
	return answer[api.ProjectStatus](ctx, c, http.MethodGet, project(name), nil)
}

// CreateProject makes a project.
func (c *Client) CreateProject(ctx context.Context, p api.ProjectRequest) (api.ProjectStatus, error) {
	return answer[api.ProjectStatus](ctx, c, http.MethodPost, "/v1/projects", p)
}

// UpdateProject replaces description, quota and shares of a project by those of p, all of them.
func (c *Client) UpdateProject(ctx context.Context, p api.Project) (api.ProjectStatus, error) {
	update := api.ProjectUpdate{Name: p.Name, ProjectSettings: api.ProjectSettings{Description: p.Description, Quota: p.Quota, Shares: p.Shares}}
	return answer[api.ProjectStatus](ctx, c, http.MethodPut, project(p.Name), update)
}

// PatchProject changes those settings of a project that the patch names.
func (c *Client) PatchProject(ctx context.Context, name string, patch api.MergePatch) (api.ProjectStatus, error) {
	return answer[api.ProjectStatus](ctx, c, http.MethodPatch, project(name), patch)
}

// DeleteProject removes a project that no cluster and no token belongs to any more.
func (c *Client) DeleteProject(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, project(name), nil, nil)
}

// Tokens lists the tokens that were made, without their secrets.
func (c *Client) Tokens(ctx context.Context) ([]api.TokenInfo, error) {
	return items[api.TokenInfo](ctx, c, "/v1/tokens")
}

// CreateToken makes a token. Only the answer has its secret.
func (c *Client) CreateToken(ctx context.Context, req api.TokenRequest) (api.NewToken, error) {
	return answer[api.NewToken](ctx, c, http.MethodPost, "/v1/tokens", req)
}

// RevokeToken makes a token void at once, also for streams that are open.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil)
}

// UsageQuery asks for usage.
type UsageQuery struct {
	// From and To bound the time; a zero From is a day before To, a zero To now.
	From, To time.Time
	// Period is "none" (one row for all the time), "hour", "day" or "month"; "" is none.
	Period string
	// By is "cluster", "user" or "project"; "" is project.
	By string
}

// path is the address of the answer in a format, "json" or "csv".
func (q UsageQuery) path(format string) string {
	v := url.Values{}
	if !q.From.IsZero() {
		v.Set("from", q.From.UTC().Format(time.RFC3339Nano))
	}
	if !q.To.IsZero() {
		v.Set("to", q.To.UTC().Format(time.RFC3339Nano))
	}
	if q.Period != "" {
		v.Set("period", q.Period)
	}
	if q.By != "" {
		v.Set("by", q.By)
	}
	v.Set("format", format)
	return "/v1/usage?" + v.Encode()
}

// Usage returns the use of resources by project and user.
func (c *Client) Usage(ctx context.Context, q UsageQuery) (api.UsageReport, error) {
	return answer[api.UsageReport](ctx, c, http.MethodGet, q.path("json"), nil)
}

// Energy returns what nodes consume now, and the energy of the last hours.
func (c *Client) Energy(ctx context.Context, hours int) (api.EnergyReport, error) {
	return answer[api.EnergyReport](ctx, c, http.MethodGet, fmt.Sprintf("/v1/energy?hours=%d", hours), nil)
}

// UsageCSV copies the rows of a usage report to w as comma-separated values (RFC 4180) with a header line.
func (c *Client) UsageCSV(ctx context.Context, q UsageQuery, w io.Writer) error {
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(bounded, http.MethodGet, q.path("csv"), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out := &sink{w: w}
	if _, err := io.Copy(out, resp.Body); err != nil {
		if out.err != nil {
			return out.err
		}
		return &UnreachableError{c.addr, err}
	}
	return nil
}
