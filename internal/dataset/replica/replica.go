// Package replica keeps a node's replicas of datasets on its disk: it fetches what the leader wants, verifies it, and gives back room.
//
// A replica is shown to nobody before every file of it was verified (Store.Ready). It stays while members have it, whatever the leader wants. The package
// must never decide which node should have what: dataset/plan does. Start with Store.Want and Store.Run; fetch.go is one replica on its way, room.go
// what goes when there is none left.
package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/filetree"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

// Config is what a Store needs.
type Config struct {
	// Dir is the store's own directory.
	Dir string
	// MaxBytes bounds all replicas together; 0: the disk does. ReserveBytes stay free on its file system.
	MaxBytes, ReserveBytes int64
	Fetcher                *transfer.Fetcher
	// Peers passes files on among nodes; nil: each node fetches all from the sources.
	Peers Peers
	// Changed is called when States has changed.
	Changed func()
	Log     *slog.Logger
}

// Peers passes verified files on among nodes. *nodeimages.Store implements it.
type Peers interface {
	// ShareFiles replaces the list of files that other nodes may read.
	ShareFiles(files []nodeimages.File)
	// FetchFile fetches a file from other nodes alone.
	FetchFile(ctx context.Context, file nodeimages.File, peers []string, came func(bytes int64)) error
}

// Store is a node's replicas.
type Store struct {
	cfg Config

	mu    sync.Mutex
	known bool // Want was called
	all   map[string]*replica
	wake  chan struct{}
	paths ways
}

// replica is a dataset that is wanted here, found here, or both.
type replica struct {
	uid  string
	want *dataset.Wanted // nil: the leader does not name it
	// record is that of a whole replica; nil: it is not whole.
	record *record
	used   bool // members have it
	// fetching ends the work under way; nil: none is.
	fetching context.CancelFunc
	// held are the bytes that are there of a replica that is not whole.
	held, sourced, peered int64
	told                  int64
	message               string
	failures              int
	retry                 time.Time
	lastUse               time.Time
	// fetched is how it came, since the agent started; nil: it was here.
	fetched *dataset.Fetched
}

// record says that a replica is whole. Its time is the last use.
type record struct {
	Name      string            `json:"name"`
	Paths     []string          `json:"paths"`
	Contents  []dataset.Content `json:"contents"`
	Evictions int64             `json:"evictions"`
	Checked   int64             `json:"checked"`
	// Private: the sources asked for a credential. It does not go to other nodes.
	Private bool `json:"private,omitempty"`
}

func (r *record) bytes() int64 {
	var sum int64
	for _, c := range r.Contents {
		sum += c.SizeBytes
	}
	return sum
}

// Names below a replica's directory.
const (
	dirFiles   = "files"  // verified, by their paths in the dataset
	dirFetch   = "fetch"  // on their way, by their numbers
	dirChunks  = "chunks" // chunk lists, by the numbers of the files
	fileRecord = "replica.json"
)

// Open opens a store and finds what is there.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, all: map[string]*replica{}, wake: make(chan struct{}, 1)}
	s.cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if s.cfg.Changed == nil {
		s.cfg.Changed = func() {}
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("datasets can't be stored: %w", err)
	}
	found, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("datasets can't be listed: %w", err)
	}
	for _, e := range found {
		r := &replica{uid: e.Name()}
		s.all[r.uid] = r
		if err := s.load(r); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("a replica can't be used as it is; it is verified again", "dataset", r.uid, "error", err)
		}
	}
	s.share()
	return s, nil
}

func (s *Store) path(uid string, below ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir, uid}, below...)...)
}

// load reads the record of a replica, and looks whether its files are there in their sizes.
func (s *Store) load(r *replica) error {
	path := s.path(r.uid, fileRecord)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return err
	}
	if len(rec.Paths) != len(rec.Contents) {
		return errors.New("its record contradicts itself")
	}
	for i, p := range rec.Paths {
		file, err := os.Lstat(s.path(r.uid, dirFiles, p))
		if err != nil {
			return err
		}
		if file.Size() != rec.Contents[i].SizeBytes {
			return fmt.Errorf("%s has %d bytes instead of %d", p, file.Size(), rec.Contents[i].SizeBytes)
		}
	}
	r.record, r.lastUse = &rec, info.ModTime()
	return nil
}

// Want takes over all that the leader wants of datasets on this node.
func (s *Store) Want(all []dataset.Wanted) {
	s.mu.Lock()
	s.known = true
	named := map[string]*dataset.Wanted{}
	for i := range all {
		w := all[i]
		named[w.UID] = &w
		if s.all[w.UID] == nil {
			s.all[w.UID] = &replica{uid: w.UID}
		}
	}
	for uid, r := range s.all {
		was := r.want
		r.want = named[uid]
		if r.fetching != nil && (r.want == nil || !r.want.Keep || was != nil && sourceChanged(was, r.want)) {
			r.fetching()
		}
		// That it failed stays true while it waits for another node: else the leader would take it for the better one again.
		if was == nil || r.want == nil || len(was.Contents) > 0 != (len(r.want.Contents) > 0) {
			r.failures, r.retry = 0, time.Time{}
		}
	}
	s.mu.Unlock()
	s.poke()
	s.cfg.Changed() // a dataset that was never heard of is reported once, so that the leader can choose who fetches it
}

// sourceChanged reports whether a replica is to come from elsewhere. Other peers alone are no reason to begin anew.
func sourceChanged(a, b *dataset.Wanted) bool {
	return a.Wait != b.Wait || len(a.Contents) > 0 != (len(b.Contents) > 0)
}

// Use takes the UIDs of all datasets that members on this node have, or are about to have.
func (s *Store) Use(uids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for uid, r := range s.all {
		if r.used != uids[uid] {
			r.used, r.lastUse = uids[uid], now
			if r.record != nil {
				_ = os.Chtimes(s.path(uid, fileRecord), now, now) // a hint of what to keep longest
			}
			s.poke()
		}
	}
}

// Place is the directory with the files of a dataset, once it is ready.
func (s *Store) Place(uid string) string { return s.path(uid, dirFiles) }

// Ready reports whether all files of a dataset are there and were verified, and if not, how far they are.
func (s *Store) Ready(uid string) (ok bool, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.all[uid]
	switch {
	case r == nil || r.want == nil && r.record == nil:
		return false, "is not known on this node yet"
	case r.record != nil && (r.want == nil || r.record.Checked >= r.want.Checks):
		return true, ""
	default:
		return false, s.describe(r)
	}
}

// leaving reports whether a replica is to go once no member has it.
func (r *replica) leaving() bool {
	return r.want != nil && (r.want.Purge || r.record != nil && r.want.Evictions > r.record.Evictions)
}

// describe says how far a replica is; the lock is held.
func (s *Store) describe(r *replica) string {
	switch {
	case r.record != nil:
		return "is being verified again"
	case r.message != "":
		return "can't be fetched: " + r.message
	case r.want != nil && r.want.Wait:
		return "waits for another node, which fetches it"
	case r.fetching != nil:
		return fmt.Sprintf("is being fetched: %d MiB of %d MiB", r.held>>20, r.expected()>>20)
	default:
		return "waits to be fetched"
	}
}

// expected is the size of a dataset as far as it is known.
func (r *replica) expected() int64 {
	if r.record != nil {
		return r.record.bytes()
	}
	var sum int64
	if r.want != nil {
		for i, f := range r.want.Files {
			if i < len(r.want.Contents) {
				sum += r.want.Contents[i].SizeBytes
			} else {
				sum += f.SizeBytes
			}
		}
	}
	return max(sum, r.held)
}

// States returns all replicas that are wanted or here.
func (s *Store) States() []dataset.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]dataset.State, 0, len(s.all))
	for _, uid := range slices.Sorted(maps.Keys(s.all)) {
		r := s.all[uid]
		state := dataset.State{
			UID: uid, HeldBytes: r.held, OfBytes: r.expected(), InUse: r.used, FromSourceBytes: r.sourced, FromPeersBytes: r.peered,
			Failed: r.failures > 0, Message: r.message, Fetched: r.fetched,
		}
		if r.want != nil {
			state.Evictions = r.want.Evictions
		}
		if rec := r.record; rec != nil {
			state.Whole, state.HeldBytes, state.Evictions, state.Checked = true, rec.bytes(), rec.Evictions, rec.Checked
			if !rec.Private {
				state.Contents = rec.Contents
			}
		}
		list = append(list, state)
	}
	return list
}

func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// share names the files that other nodes may read; the lock is held, or nobody else knows of s.
func (s *Store) share() {
	if s.cfg.Peers == nil {
		return
	}
	var files []nodeimages.File
	for uid, r := range s.all {
		if r.record == nil || r.record.Private {
			continue
		}
		for i, p := range r.record.Paths {
			if c := r.record.Contents[i]; c.SizeBytes > 0 {
				files = append(files, nodeimages.File{Root: c.Root(), Path: s.path(uid, dirFiles, p), List: s.path(uid, dirChunks, strconv.Itoa(i))})
			}
		}
	}
	s.cfg.Peers.ShareFiles(files)
}

// markWhole writes down that a replica is whole.
func (s *Store) markWhole(r *replica, rec *record) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := durablefile.Write(s.path(r.uid, fileRecord), data, 0o644); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.record, r.message, r.failures, r.held, r.lastUse = rec, "", 0, 0, time.Now()
	s.share()
	return nil
}

// remove removes a replica from the disk. What says that it is whole goes first.
func (s *Store) remove(ctx context.Context, uid string) error {
	if err := os.Remove(s.path(uid, fileRecord)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return filetree.Remove(ctx, s.path(uid))
}
