package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/nearmetal/nearmetal/api"
)

func shape(name string) string { return "/v1/shapes/" + url.PathEscape(name) }

// Shapes lists the named shapes, by name.
func (c *Client) Shapes(ctx context.Context) ([]api.NamedShape, error) {
	return items[api.NamedShape](ctx, c, "/v1/shapes")
}

// Shape returns one named shape.
func (c *Client) Shape(ctx context.Context, name string) (api.NamedShape, error) {
	return answer[api.NamedShape](ctx, c, http.MethodGet, shape(name), nil)
}

// SetShape makes a named shape, or replaces it.
func (c *Client) SetShape(ctx context.Context, name string, s api.ShapeSettings) (api.NamedShape, error) {
	return answer[api.NamedShape](ctx, c, http.MethodPut, shape(name), s)
}

// DeleteShape removes a named shape.
func (c *Client) DeleteShape(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, shape(name), nil, nil)
}
