package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/nearmetal/nearmetal/api"
)

// Addresses returns all floating addresses that the token may see.
func (c *Client) Addresses(ctx context.Context) ([]api.FloatingAddressStatus, error) {
	return items[api.FloatingAddressStatus](ctx, c, "/v1/addresses")
}

// AllocateAddress allocates a floating address to a project.
func (c *Client) AllocateAddress(ctx context.Context, req api.AddressRequest) (api.FloatingAddressStatus, error) {
	return answer[api.FloatingAddressStatus](ctx, c, http.MethodPost, "/v1/addresses", req)
}

// Address returns a floating address.
func (c *Client) Address(ctx context.Context, address string) (api.FloatingAddressStatus, error) {
	return answer[api.FloatingAddressStatus](ctx, c, http.MethodGet, floatingAddress(address), nil)
}

// AssignAddress makes a floating address lead to a member.
func (c *Client) AssignAddress(ctx context.Context, address string, req api.AddressAssignment) (api.FloatingAddressStatus, error) {
	return answer[api.FloatingAddressStatus](ctx, c, http.MethodPut, floatingAddress(address)+"/assignment", req)
}

// UnassignAddress makes a floating address lead nowhere.
func (c *Client) UnassignAddress(ctx context.Context, address string) (api.FloatingAddressStatus, error) {
	return answer[api.FloatingAddressStatus](ctx, c, http.MethodDelete, floatingAddress(address)+"/assignment", nil)
}

// ReleaseAddress gives a floating address back to the site.
func (c *Client) ReleaseAddress(ctx context.Context, address string) error {
	return c.do(ctx, http.MethodDelete, floatingAddress(address), nil, nil)
}

func floatingAddress(address string) string { return "/v1/addresses/" + url.PathEscape(address) }
