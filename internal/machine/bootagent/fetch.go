package bootagent

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/lazyroot"
)

// agentTries is how often all sources of the node agent are tried, those not counted when none could be reached.
const agentTries = 5

// agentSource is one place the node agent's binary may come from.
type agentSource struct {
	open func() (*http.Response, error)
	gzip bool
}

// agentSources are those places in the order of what they cost the server: peers, then its image server, each compressed first, then the
// boot API, where every byte is encrypted for each machine.
func (a *Agent) agentSources(ctx context.Context, agent *boot.Agent) []agentSource {
	var sources []agentSource
	blob := func(b image.Blob, gzip bool) {
		for _, url := range append(slices.Clone(a.welcome.Peers), a.args.Images) {
			sources = append(sources, agentSource{gzip: gzip, open: func() (*http.Response, error) {
				return get(ctx, a.images, strings.TrimSuffix(url, "/")+"/"+b.Digest.Hex())
			}})
		}
	}
	if agent.Gzip != nil {
		blob(*agent.Gzip, true)
	}
	blob(agent.Binary, false)
	return append(sources, agentSource{open: func() (*http.Response, error) {
		return a.calls.send(ctx, http.MethodGet, boot.AgentBinaryPath, nil)
	}})
}

func get(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %w", url, &lazyroot.StatusError{Code: resp.StatusCode, Text: resp.Status})
	}
	return resp, err
}

// fetchAgent gets the node agent's binary, verified.
func (a *Agent) fetchAgent(ctx context.Context, path string, agent *boot.Agent) error {
	for try, answered := 0, 0; ; try++ {
		var errs []error
		reached := false
		for _, source := range a.agentSources(ctx, agent) {
			resp, err := source.open()
			if err == nil {
				err = saveVerified(path, resp.Body, source.gzip, agent.Binary)
				_ = resp.Body.Close()
			}
			if err == nil {
				return nil
			}
			errs = append(errs, err)
			reached = reached || !lazyroot.Unreached(err)
		}
		if reached {
			answered++
		}
		if answered == agentTries {
			return errors.Join(errs...)
		}
		a.log.Warn("the node agent's binary can't be fetched", "error", errors.Join(errs...))
		if err := backoff(ctx, min(try, 3)); err != nil {
			return err
		}
	}
}

// saveVerified writes an executable if what it reads, uncompressed, is the blob.
func saveVerified(path string, r io.Reader, compressed bool, blob image.Blob) error {
	if compressed {
		decompressor, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		r = decompressor
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, sum), io.LimitReader(r, blob.SizeBytes+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	if got := image.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != blob.Digest {
		return errors.Join(fmt.Errorf("%w: it is %s, not %s", image.ErrDigest, got, blob.Digest), os.Remove(path))
	}
	return nil
}
