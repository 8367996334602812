package nodeimages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Bounds of what is read without a chunk list.
const (
	mostManifestBytes = 4 << 20
	mostListBytes     = 256 << 20 // of chunks: a root of 2 TiB
	mostKernelBytes   = 512 << 20 // of a kernel, and of an initial RAM disk
)

// fetch is one image on its way here.
type fetch struct {
	store *Store
	want  Wanted
	// file is what is fetched in place of an image, from peers alone; nil: it is an image.
	file *File
	// arrived is called with the bytes of each piece; nil: nobody counts.
	arrived func(bytes int64)
	// served and peered count the bytes that came from the server and from peers.
	served, peered atomic.Int64

	mu       sync.Mutex
	peers    []string
	bad      map[string]string // peers that are not asked again, and why
	message  string
	partials []*partial
	total    int64
	told     int64 // held bytes when Changed was last called
	changed  chan struct{}
}

func newFetch(s *Store, w Wanted) *fetch {
	return &fetch{store: s, want: w, peers: w.Peers, bad: map[string]string{}, changed: make(chan struct{})}
}

// run fetches what is missing and marks the image whole.
func (f *fetch) run(ctx context.Context) error {
	m, err := f.manifest(ctx)
	if err != nil {
		return err
	}
	var need int64
	for _, r := range f.store.roots(m) {
		if exists(f.store.blob(r.Digest)) {
			continue
		}
		p, err := f.open(ctx, r)
		if err != nil {
			return err
		}
		_, held := p.state()
		need += r.SizeBytes - held
	}
	if err := f.store.makeRoom(need); err != nil {
		return err
	}
	for _, p := range f.partials {
		if err := f.fill(ctx, p); err != nil {
			return err
		}
		if err := p.finish(f.store.blob(p.root.Digest)); err != nil {
			return err
		}
	}
	for _, b := range f.store.bootBlobs(m) {
		if b.SizeBytes > mostKernelBytes {
			return fmt.Errorf("its kernel or initial RAM disk has %d MiB; at most %d MiB are allowed", b.SizeBytes>>20, mostKernelBytes>>20)
		}
		if _, err := f.small(ctx, b.Digest, b.SizeBytes); err != nil {
			return fmt.Errorf("its kernel or initial RAM disk: %w", err)
		}
	}
	return f.store.markWhole(f.want, m)
}

// manifest gets the manifest, verifies whose it is, and that this node can run the image.
func (f *fetch) manifest(ctx context.Context) (*image.Manifest, error) {
	if err := f.want.Digest.Check(); err != nil {
		return nil, err
	}
	data, err := f.small(ctx, f.want.Digest, mostManifestBytes)
	if err != nil {
		return nil, err
	}
	if len(f.store.publicKey()) == 0 {
		return nil, errors.New("the server has not sent the key that images are signed with")
	}
	if err := image.Verify(f.store.publicKey(), data, f.want.Signature); err != nil {
		return nil, fmt.Errorf("the manifest is not signed by this site: %w", err)
	}
	m, err := image.Decode(data, f.want.Digest)
	if err != nil {
		return nil, err
	}
	if own := machine(); m.Architecture != "" && m.Architecture != own {
		return nil, fmt.Errorf("the image is built for %s, but this node is %s", m.Architecture, own)
	}
	if m.Root.Digest == "" {
		return nil, errors.New("the image has no root: it only boots machines")
	}
	return m, nil
}

// machine is this machine's architecture as uname -m tells it.
func machine() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	default:
		return runtime.GOARCH
	}
}

func (s *Store) publicKey() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key
}

// open opens what there is of a root, with its chunk list.
func (f *fetch) open(ctx context.Context, r image.Root) (*partial, error) {
	list, err := f.small(ctx, r.Chunks.Digest, mostListBytes)
	if err != nil {
		return nil, err
	}
	chunks, err := image.ParseChunks(list, r)
	if err != nil {
		return nil, err
	}
	s := f.store
	s.mu.Lock()
	p := s.partial[r.Digest]
	s.mu.Unlock()
	if p == nil {
		if p, err = s.openPartial(r, chunks); err != nil {
			return nil, fmt.Errorf("the image can't be stored: %w", err)
		}
	}
	_, held := p.state()
	f.mu.Lock()
	f.partials = append(f.partials, p)
	f.total += r.SizeBytes
	f.told += held
	f.mu.Unlock()
	s.mu.Lock()
	s.partial[r.Digest] = p
	s.mu.Unlock()
	return p, nil
}

// small gets a blob that is read as a whole: from the store, the server, or a peer.
func (f *fetch) small(ctx context.Context, d image.Digest, most int64) ([]byte, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	path := f.store.blob(d)
	if data, err := os.ReadFile(path); err == nil && image.DigestOf(data) == d {
		return data, nil
	}
	var data []byte
	err := errNoPeer
	if f.file == nil {
		data, err = f.read(ctx, f.server(), d, most)
	}
	for _, url := range f.livePeers() {
		if err == nil || ctx.Err() != nil {
			break
		}
		var peerErr error
		if data, peerErr = f.read(ctx, f.peer(url), d, most); peerErr == nil {
			err = nil
		} else if errors.Is(peerErr, image.ErrDigest) {
			f.drop(url, peerErr)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := f.store.makeRoom(int64(len(data))); err != nil {
		return nil, err
	}
	if err := durablefile.Write(path, data, 0o644); err != nil {
		return nil, fmt.Errorf("the image can't be stored: %w", err)
	}
	return data, nil
}

// read reads a whole blob from a source and verifies it.
func (f *fetch) read(ctx context.Context, from source, d image.Digest, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTime)
	defer cancel()
	body, err := from.open(ctx, d, "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	data, err := io.ReadAll(io.LimitReader(body, most+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s: %s has more than %d bytes: %w", from, short(d), most, image.ErrDigest)
	}
	if got := image.DigestOf(data); got != d {
		return nil, fmt.Errorf("%s sent wrong content for %s: %w", from, short(d), image.ErrDigest)
	}
	return data, nil
}

// setPeers takes the peers that the leader names now.
func (f *fetch) setPeers(peers []string) {
	f.mu.Lock()
	f.peers = peers
	f.mu.Unlock()
	f.notify()
}

// livePeers are those that have not been dropped.
func (f *fetch) livePeers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var live []string
	for _, p := range f.peers {
		if f.bad[p] == "" {
			live = append(live, p)
		}
	}
	return live
}

// drop stops asking a peer, and tells.
func (f *fetch) drop(url string, err error) {
	f.mu.Lock()
	f.bad[url] = err.Error()
	f.message = fmt.Sprintf("peer %s was dropped: %v", url, err)
	f.mu.Unlock()
	f.store.cfg.Log.Warn("a peer was dropped", "image", f.want.Digest, "peer", url, "error", err)
	f.store.cfg.Changed()
}

func (f *fetch) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.message
}

// progress is how much of the roots is here.
func (f *fetch) progress() (held, total int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.partials {
		_, bytes := p.state()
		held += bytes
	}
	return held, f.total
}

// came notes that a chunk is here; what people see of it changes in steps of a twentieth.
func (f *fetch) came() {
	held, total := f.progress()
	f.mu.Lock()
	tell := held-f.told >= total/20
	if tell {
		f.told = held
	}
	f.mu.Unlock()
	if tell {
		f.store.cfg.Changed()
	}
	f.notify()
}

// notify wakes all who wait for something to change.
func (f *fetch) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fetch) changes() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}
