// Package nodeimages is a node's own store of built environments: it fetches what the leader says the node should hold, from the server
// or from other nodes, and serves what it holds to them.
//
// Peers need not be trusted: every chunk is verified by the chunk list, which the manifest names, which the site has signed. What a crash
// leaves is true by looking: content is verified again before it counts. It must never decide what a node holds beyond keeping what
// members may need for as long as there is room. Start with Store.Want and Store.Run; fetch.go is one image on its way.
package nodeimages

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Config is what a Store needs.
type Config struct {
	// Dir is the store's own directory.
	Dir string
	// Booted is the directory with the image that this machine was booted from, as the boot agent lays it out; empty for none.
	Booted string
	// Keep is how many images that are no longer wanted stay, while there is room.
	Keep int
	// ReserveBytes stay free on the file system of Dir.
	ReserveBytes int64
	// Server is the URL below which the server has every blob by its digits; Client reaches it.
	Server string
	Client *http.Client
	// Peers reaches other nodes, over plain HTTP; nil: http.Client with timeouts that fit.
	Peers *http.Client
	// LayersOnly: of each image, the node needs the uppermost layer alone. Its own root is what it was booted with.
	LayersOnly bool
	// Kernels: the node boots virtual machines, so that it also needs kernel and initial RAM disk of images for them.
	Kernels bool
	// Changed is called when Status has changed.
	Changed func()
	Log     *slog.Logger
}

// Wanted is an image that the node should hold.
type Wanted struct {
	Digest image.Digest
	// Signature is the site's, of the manifest.
	Signature []byte
	// Peers are URLs of nodes that hold it or fetch it, below which blobs are by their digits.
	Peers []string
}

// Status is an image here, whole or being fetched.
type Status struct {
	Digest image.Digest
	// Whole: all of it is here, verified and durable.
	Whole                 bool
	HeldBytes, TotalBytes int64
	// Message is what people should know about it: why it is not whole, which peer was dropped.
	Message string
}

// Store is a node's images.
type Store struct {
	cfg Config

	mu     sync.Mutex
	key    ed25519.PublicKey
	wanted []Wanted // nil until Want was first called
	known  bool     // Want was called
	whole  map[image.Digest]*image.Manifest
	// active is the image being fetched, with what ends that.
	active *fetch
	cancel context.CancelFunc
	failed map[image.Digest]failure
	// partial are open files with some of their chunks, by blob.
	partial map[image.Digest]*partial
	// comes: the boot agent fetches an image that is wanted.
	comes bool
	// files are those that other nodes may read besides images, and lists their chunk lists, by digest.
	files, lists map[image.Digest]File
	wake         chan struct{}
}

// failure is why an image could not be fetched, and when that is tried again.
type failure struct {
	message string
	count   int
	retry   time.Time
}

// Directories of a store: blobs are verified and durable, partial ones have some of their chunks. A file in whole tells that an image is
// there with all its blobs; its time is when the image was last wanted, its content the signature.
const (
	dirBlobs   = "blobs"
	dirPartial = "partial"
	dirWhole   = "whole"
)

// Open opens a store and finds what is there.
func Open(cfg Config) (*Store, error) {
	s := &Store{
		cfg: cfg, whole: map[image.Digest]*image.Manifest{}, failed: map[image.Digest]failure{}, partial: map[image.Digest]*partial{},
		wake: make(chan struct{}, 1),
	}
	s.cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if s.cfg.Changed == nil {
		s.cfg.Changed = func() {}
	}
	if s.cfg.Peers == nil {
		s.cfg.Peers = peerClient()
	}
	for _, dir := range []string{dirBlobs, dirPartial, dirWhole} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, dir), 0o755); err != nil {
			return nil, fmt.Errorf("the node's images can't be stored: %w", err)
		}
	}
	marks, err := os.ReadDir(filepath.Join(cfg.Dir, dirWhole))
	if err != nil {
		return nil, fmt.Errorf("the node's images can't be listed: %w", err)
	}
	for _, mark := range marks {
		digest := image.Digest("sha256:" + mark.Name())
		manifest, err := s.checkWhole(digest)
		if err != nil {
			s.cfg.Log.Warn("an image of this node has changed on disk; it is fetched again when needed", "image", digest, "error", err)
			if err := os.Remove(filepath.Join(cfg.Dir, dirWhole, mark.Name())); err != nil {
				return nil, err
			}
			continue
		}
		s.whole[digest] = manifest
	}
	return s, nil
}

// checkWhole looks whether all blobs of an image are there in their sizes; their content was verified before they were put there.
func (s *Store) checkWhole(digest image.Digest) (*image.Manifest, error) {
	if err := digest.Check(); err != nil {
		return nil, err
	}
	manifest, err := s.manifest(digest)
	if err != nil {
		return nil, err
	}
	for _, blob := range s.needed(manifest) {
		info, err := os.Stat(s.blob(blob.Digest))
		if err != nil {
			return nil, err
		}
		if info.Size() != blob.SizeBytes {
			return nil, fmt.Errorf("%s has %d bytes instead of %d", info.Name(), info.Size(), blob.SizeBytes)
		}
	}
	return manifest, nil
}

func (s *Store) manifest(digest image.Digest) (*image.Manifest, error) {
	data, err := os.ReadFile(s.blob(digest))
	if err != nil {
		return nil, err
	}
	return image.Decode(data, digest)
}

// needed are the blobs that the node needs of an image: what it does not boot from it, it need not have.
func (s *Store) needed(m *image.Manifest) []image.Blob {
	var blobs []image.Blob
	for _, r := range s.roots(m) {
		blobs = append(blobs, r.Chunks, r.Blob)
	}
	return append(blobs, s.bootBlobs(m)...)
}

// roots are the root and the layers that the node needs of an image, the lowest first.
func (s *Store) roots(m *image.Manifest) []image.Root {
	all := m.Roots()
	if s.cfg.LayersOnly && len(all) > 1 {
		return all[len(all)-1:]
	}
	return all
}

// bootBlobs are kernel and initial RAM disk, if the node boots virtual machines from the image.
func (s *Store) bootBlobs(m *image.Manifest) []image.Blob {
	if !s.cfg.Kernels || m.Metal == nil || !slices.Contains(m.Stacks, api.StackVM) {
		return nil
	}
	return []image.Blob{m.Metal.Kernel, m.Metal.Initrd}
}

func (s *Store) blob(d image.Digest) string { return filepath.Join(s.cfg.Dir, dirBlobs, d.Hex()) }
func (s *Store) mark(d image.Digest) string { return filepath.Join(s.cfg.Dir, dirWhole, d.Hex()) }

// Image returns the files of an image that is wholly here; the error tells how far it is.
func (s *Store) Image(digest string) (environment.Image, error) {
	d := image.Digest(digest)
	if booted, ok := s.booted(d); ok {
		return booted, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.whole[d]
	if m == nil {
		return environment.Image{}, errors.New(s.describe(d))
	}
	found := environment.Image{Digest: digest, Disk: m.Disk}
	for _, r := range s.roots(m) {
		found.Layers = append(found.Layers, environment.Layer{Path: s.blob(r.Digest), Format: r.Format})
	}
	if len(s.bootBlobs(m)) > 0 {
		found.Kernel = &environment.Kernel{
			Path: s.blob(m.Metal.Kernel.Digest), Initrd: s.blob(m.Metal.Initrd.Digest), Arguments: m.Metal.Arguments,
		}
	}
	return found, nil
}

// Whole tells whether an image is wholly here, and if not, how far it is.
func (s *Store) Whole(digest string) (bool, string) {
	if _, err := s.Image(digest); err != nil {
		return false, err.Error()
	}
	return true, ""
}

// describe says how far an image is; the lock is held.
func (s *Store) describe(d image.Digest) string {
	name := "image " + short(d)
	if f := s.active; f != nil && f.want.Digest == d {
		held, total := f.progress()
		if total > 0 {
			return fmt.Sprintf("%s: %d MiB of %d MiB fetched", name, held>>20, total>>20)
		}
		return name + " is being fetched"
	}
	if failed, ok := s.failed[d]; ok {
		return name + " can't be fetched: " + failed.message
	}
	if slices.ContainsFunc(s.wanted, func(w Wanted) bool { return w.Digest == d }) {
		return name + " is waiting to be fetched"
	}
	return name + " is not on this node"
}

// short is a digest for people.
func short(d image.Digest) string { return string(d)[:min(len(d), len("sha256:")+12)] }

// Want takes the whole list of images the node should hold, and the key that their manifests are signed with.
func (s *Store) Want(key []byte, images []Wanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && string(key) == string(s.key) && equal(s.wanted, images) {
		return
	}
	s.key, s.wanted, s.known = ed25519.PublicKey(key), images, true
	now := time.Now()
	for _, w := range images {
		if s.whole[w.Digest] != nil {
			_ = os.Chtimes(s.mark(w.Digest), now, now) // a hint of what to keep longest
		}
	}
	for d := range s.failed {
		if !s.wants(d) {
			delete(s.failed, d)
		}
	}
	if s.active != nil {
		if i := slices.IndexFunc(images, func(w Wanted) bool { return w.Digest == s.active.want.Digest }); i >= 0 {
			s.active.setPeers(images[i].Peers)
		} else {
			s.cancel()
		}
	}
	s.poke()
}

func equal(a, b []Wanted) bool {
	return slices.EqualFunc(a, b, func(a, b Wanted) bool {
		return a.Digest == b.Digest && string(a.Signature) == string(b.Signature) && slices.Equal(a.Peers, b.Peers)
	})
}

// wants tells whether an image is wanted; the lock is held.
func (s *Store) wants(d image.Digest) bool {
	return slices.ContainsFunc(s.wanted, func(w Wanted) bool { return w.Digest == d })
}

func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Status tells of every image that is wanted or whole here, the one that this machine was booted from among them: others may read it here
// whether or not a member stands on it.
func (s *Store) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Status
	for d, m := range s.whole {
		size := s.sizeOf(m)
		list = append(list, Status{Digest: d, Whole: true, HeldBytes: size, TotalBytes: size})
	}
	booted, err := s.bootedManifest()
	if err == nil && s.whole[booted.digest] == nil {
		size := s.sizeOf(booted.Manifest)
		list = append(list, Status{Digest: booted.digest, Whole: true, HeldBytes: size, TotalBytes: size})
	}
	for _, w := range s.wanted {
		if s.whole[w.Digest] != nil || err == nil && w.Digest == booted.digest {
			continue
		}
		status := Status{Digest: w.Digest, Message: s.failed[w.Digest].message}
		if f := s.active; f != nil && f.want.Digest == w.Digest {
			status.HeldBytes, status.TotalBytes = f.progress()
			status.Message = cmp.Or(f.said(), status.Message)
		}
		list = append(list, status)
	}
	slices.SortFunc(list, func(a, b Status) int { return cmp.Compare(a.Digest, b.Digest) })
	return list
}

func (s *Store) sizeOf(m *image.Manifest) int64 {
	var sum int64
	for _, b := range s.needed(m) {
		sum += b.SizeBytes
	}
	return sum
}

// markWhole writes down that an image was fetched; its blobs are durable already.
func (s *Store) markWhole(w Wanted, m *image.Manifest) error {
	text, err := json.Marshal(struct {
		Signature []byte `json:"signature"`
	}{w.Signature})
	if err != nil {
		return err
	}
	if err := durablefile.Write(s.mark(w.Digest), text, 0o644); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whole[w.Digest] = m
	delete(s.failed, w.Digest)
	return nil
}

// exists tells whether a file is there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
