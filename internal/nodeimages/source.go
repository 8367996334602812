package nodeimages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// Patience with sources.
const (
	smallTime = 60 * time.Second // for a manifest or a chunk list
	chunkTime = 15 * time.Second // for each chunk
	dialTime  = 3 * time.Second
)

// source is where blobs come from: the server, or a peer.
type source struct {
	url    string // below which blobs are by their digits
	client *http.Client
	name   string
}

func (s source) String() string { return s.name }

func (f *fetch) server() source {
	cfg := f.store.cfg
	return source{url: cfg.Server, client: cfg.Client, name: "the server"}
}

func (f *fetch) peer(url string) source {
	return source{url: url, client: f.store.cfg.Peers, name: "peer " + url}
}

// peerClient makes plain requests only: no proxy, no redirect to anywhere else, few idle connections.
func peerClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, ResponseHeaderTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Answers of sources that are no failure of theirs.
var (
	errBusy    = errors.New("the peer is busy")
	errNotHere = errors.New("the content is not there")
)

// open asks for a blob, or a range of it as in RFC 9110, section 14.1.2.
func (s source) open(ctx context.Context, d image.Digest, span string) (io.ReadCloser, error) {
	return s.openPath(ctx, d.Hex(), span)
}

func (s source) openPath(ctx context.Context, path, span string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	want := http.StatusOK
	if span != "" {
		request.Header.Set("Range", span)
		want = http.StatusPartialContent
	}
	answer, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s can't be reached: %w", s, err)
	}
	if answer.StatusCode == want {
		return answer.Body, nil
	}
	defer func() { _ = answer.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
	switch answer.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return nil, fmt.Errorf("%s: %w", s, errBusy)
	case http.StatusNotFound:
		return nil, fmt.Errorf("%s: %w (%s)", s, errNotHere, path[:min(12, len(path))])
	default:
		return nil, fmt.Errorf("%s answered %s instead of %d: %q", s, answer.Status, want, said)
	}
}

// chunks gets n chunks from first on, puts each into p as it comes, and counts its bytes. What it returns with image.ErrDigest is the
// source's fault.
func (f *fetch) chunks(ctx context.Context, from source, p *partial, first, n int, count func(int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tooSlow := fmt.Errorf("%s took more than %s for a chunk", from, chunkTime)
	stall := time.AfterFunc(chunkTime, func() { cancel(tooSlow) })
	defer stall.Stop()
	begin := int64(first) * image.ChunkBytes
	end := int64(first+n-1)*image.ChunkBytes + p.size(first+n-1)
	body, err := from.open(ctx, p.root.Digest, fmt.Sprintf("bytes=%d-%d", begin, end-1))
	if err != nil {
		return causeOf(ctx, err)
	}
	defer func() { _ = body.Close() }()
	buffer := make([]byte, image.ChunkBytes)
	for i := first; i < first+n; i++ {
		data := buffer[:p.size(i)]
		if _, err := io.ReadFull(body, data); err != nil {
			return causeOf(ctx, fmt.Errorf("%s: %w", from, err))
		}
		stall.Reset(chunkTime)
		if err := p.put(i, data); err != nil {
			return fmt.Errorf("%s: chunk %d of %s: %w", from, i, short(p.root.Digest), err)
		}
		count(int64(len(data)))
		if f.arrived != nil {
			f.arrived(int64(len(data)))
		}
		f.came()
	}
	return nil
}

// causeOf tells why a context ended, when that is what failed.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func newHash() hash.Hash { return sha256.New() }

func digestOf(h hash.Hash) image.Digest {
	return image.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}
