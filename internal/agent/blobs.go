package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/nearmetal/nearmetal/internal/image"
)

// imagesPath is where the server has blobs by their digits, for agents: GET with ranges, HEAD, PUT.
const imagesPath = "/agent/v1/images/"

// serverBlobs is the server's store of images, as agents reach it. It implements Blobs.
type serverBlobs struct {
	server string
	client *http.Client
}

func (s serverBlobs) request(ctx context.Context, method string, d image.Digest, body io.Reader) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, method, s.server+imagesPath+d.Hex(), body)
}

// Upload stores the file of a blob, unless the server has it.
func (s serverBlobs) Upload(ctx context.Context, blob image.Blob, path string) error {
	ask, err := s.request(ctx, http.MethodHead, blob.Digest, nil)
	if err != nil {
		return err
	}
	answer, err := s.client.Do(ask)
	if err != nil {
		return fmt.Errorf("the server can't be reached: %w", err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	put, err := s.request(ctx, http.MethodPut, blob.Digest, f)
	if err != nil {
		return err
	}
	put.ContentLength = blob.SizeBytes
	put.Header.Set("Content-Type", "application/octet-stream")
	answer, err = s.client.Do(put)
	if err != nil {
		return fmt.Errorf("the server can't be reached: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode/100 != 2 {
		return refused(answer)
	}
	return nil
}

// refused is what the server said, for people.
func refused(answer *http.Response) error {
	said, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
	return fmt.Errorf("the server answered %s: %s", answer.Status, strings.TrimSpace(string(said)))
}

// Download writes a blob to a file, verified.
func (s serverBlobs) Download(ctx context.Context, d image.Digest, path string) error {
	ask, err := s.request(ctx, http.MethodGet, d, nil)
	if err != nil {
		return err
	}
	answer, err := s.client.Do(ask)
	if err != nil {
		return fmt.Errorf("the server can't be reached: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return refused(answer)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), answer.Body)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != d.Hex() {
		return fmt.Errorf("the server sent wrong content for %s: %w", d, image.ErrDigest)
	}
	return nil
}
