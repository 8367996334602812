package server

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagestore"
)

// minFreeBytes is what images leave free on the disk of the state directory: what is decided needs room too.
const minFreeBytes = 1 << 30

// errUnvouched: what the site would sign is no image that it has a record of, or one that nobody vouches for.
var errUnvouched = errors.New("the site does not sign it: no trusted builder built it, and no two nodes verified it")

// images are the site's built environments: the store, and the key that their manifests are signed with.
type images struct {
	store *imagestore.Store
	key   ed25519.PrivateKey
	// record returns what is stored of an image, nil when nothing is. Builder nodes store any content; the leader alone records images.
	record func(digest string) *api.Image

	mu        sync.Mutex
	manifests map[image.Digest]*readManifest
}

type readManifest struct {
	manifest *image.Manifest
	data     []byte
}

func openImages(dir string, secret []byte, record func(digest string) *api.Image) (*images, error) {
	key, err := image.SigningKey(secret)
	if err != nil {
		return nil, err
	}
	store, err := imagestore.Open(dir, minFreeBytes)
	if err != nil {
		return nil, err
	}
	return &images{store: store, key: key, record: record, manifests: map[image.Digest]*readManifest{}}, nil
}

// read reads a manifest, once: content under a digest never changes.
func (i *images) read(digest image.Digest) (*readManifest, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if m := i.manifests[digest]; m != nil {
		return m, nil
	}
	// It is a builder that says that this is a manifest: the store looks first how large it is.
	if _, err := i.store.Manifest(digest); err != nil {
		return nil, err
	}
	blob, err := i.store.Open(digest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = blob.Close() }()
	data := make([]byte, blob.Size())
	if _, err := io.ReadFull(io.NewSectionReader(blob, 0, blob.Size()), data); err != nil {
		return nil, err
	}
	manifest, err := image.Decode(data, digest)
	if err != nil {
		return nil, err
	}
	m := &readManifest{manifest: manifest, data: data}
	i.manifests[digest] = m
	return m, nil
}

// Load reads a manifest, whoever built it.
func (i *images) Load(digest image.Digest) (*image.Manifest, error) {
	m, err := i.read(digest)
	if err != nil {
		return nil, err
	}
	return m.manifest, nil
}

// Manifest reads an encoded manifest and signs it. One that nobody vouches for is errUnvouched.
func (i *images) Manifest(digest image.Digest) (manifest, signature []byte, err error) {
	m, err := i.read(digest)
	if err != nil {
		return nil, nil, err
	}
	if img := i.record(string(digest)); img == nil || !img.Vouched() {
		return nil, nil, fmt.Errorf("image %s: %w", digest, errUnvouched)
	}
	return m.data, image.Sign(i.key, m.data), nil
}

// Signature is the site's, of a manifest. One that nobody vouches for is errUnvouched.
func (i *images) Signature(digest image.Digest) ([]byte, error) {
	_, signature, err := i.Manifest(digest)
	return signature, err
}

// Complete tells whether all that a manifest names is there; the error names what is not.
func (i *images) Complete(digest image.Digest) error {
	missing, err := i.store.Missing(digest)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d of its parts are missing, including %s", len(missing), missing[0].Digest)
	}
	return nil
}

// Collect removes what no manifest in use names.
func (i *images) Collect(inUse []image.Digest, grace time.Duration) (freedBytes int64, err error) {
	freed, err := i.store.Collect(inUse, grace)
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, b := range freed {
		freedBytes += b.SizeBytes
		delete(i.manifests, b.Digest) // what is gone must not be given out, nor fill memory
	}
	return freedBytes, err
}

// PublicKey verifies signatures.
func (i *images) PublicKey() []byte { return image.PublicKey(i.key) }
