package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Upload stores a file, of so many bytes, under its digest, for a build whose recipe imports it. A file that the server has is not sent.
func (c *Client) Upload(ctx context.Context, digest string, size int64, file io.Reader) error {
	path := "/v1/uploads/" + strings.TrimPrefix(digest, "sha256:")
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, c.base+path, io.NopCloser(file))
	if err != nil {
		return fmt.Errorf("server address %q: %w", c.addr, err)
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("Expect", "100-continue")
	resp, err := c.finish(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
