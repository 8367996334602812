package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

const (
	// filesAtOnce of a dataset are fetched, and replicasAtOnce are worked on.
	filesAtOnce    = 4
	replicasAtOnce = 4
	// retryMin and retryMax are the pauses between attempts.
	retryMin = time.Second
	retryMax = time.Minute
)

// Run makes the replicas what is wanted until ctx ends.
func (s *Store) Run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	slots := make(chan struct{}, replicasAtOnce)
	for ctx.Err() == nil {
		s.dismiss(ctx)
		wait := time.Hour
		for r := s.next(ctx, &wait); r != nil; r = s.next(ctx, &wait) {
			workers.Go(func() {
				select {
				case slots <- struct{}{}:
					defer func() { <-slots }()
				case <-r.ctx.Done():
				}
				s.work(r.ctx, r.replica)
				s.poke()
			})
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// job is a replica that is being worked on.
type job struct {
	*replica
	ctx context.Context
}

// next claims a replica that something is to be done for, nil for none. It shortens wait to when that may change by itself.
func (s *Store) next(ctx context.Context, wait *time.Duration) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		w := r.want
		if r.fetching != nil || w == nil || !w.Keep || w.Wait && r.record == nil || r.record != nil && r.record.Checked >= w.Checks {
			continue
		}
		if pause := time.Until(r.retry); pause > 0 {
			*wait = min(*wait, pause)
			continue
		}
		workCtx, cancel := context.WithCancel(ctx)
		r.fetching = cancel
		return &job{r, workCtx}
	}
	return nil
}

// work verifies a whole replica again, or fetches what is missing of another, and notes how that went.
func (s *Store) work(ctx context.Context, r *replica) {
	s.mu.Lock()
	want, rec := r.want, r.record
	s.mu.Unlock()
	var err error
	if want == nil || ctx.Err() != nil {
		err = context.Canceled
	} else if rec != nil {
		err = s.check(r, want, rec)
	} else {
		err = s.fetch(ctx, r, want)
	}
	s.mu.Lock()
	ended := ctx.Err() != nil
	r.fetching()
	r.fetching = nil
	if err != nil && !ended && !errors.Is(err, context.Canceled) {
		r.retry = time.Now().Add(min(retryMin<<min(r.failures, 10), retryMax))
		r.failures++
		r.message = err.Error()
		s.cfg.Log.Warn("a dataset can't be fetched; trying again", "dataset", r.uid, "error", err, "attempt", r.failures)
	}
	s.mu.Unlock()
	s.cfg.Changed()
}

// fetch fetches the files that are missing, verifies each, and marks the replica whole.
func (s *Store) fetch(ctx context.Context, r *replica, want *dataset.Wanted) error {
	for _, dir := range []string{dirFiles, dirFetch, dirChunks} {
		if err := os.MkdirAll(s.path(r.uid, dir), 0o755); err != nil {
			return err
		}
	}
	room, err := s.makeRoom(ctx, r, want)
	if err != nil {
		return err
	}
	s.mu.Lock()
	r.held = 0 // what an earlier attempt has left is counted as it is found
	j := &journey{began: time.Now(), sourced: r.sourced, peered: r.peered}
	s.mu.Unlock()
	rec := &record{
		Name: want.Name, Paths: make([]string, len(want.Files)), Contents: make([]dataset.Content, len(want.Files)), Evictions: want.Evictions,
		Checked: want.Checks, Private: want.Credential != nil,
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(filesAtOnce)
	for i := range want.Files {
		group.Go(func() error {
			content, err := s.file(ctx, r, j, want, i, room)
			rec.Paths[i], rec.Contents[i] = want.Files[i].Path, content
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	failpoint.Hit("replica.before-whole")
	if err := s.markWhole(r, rec); err != nil {
		return err
	}
	s.arrived(r, j, rec.bytes())
	s.cfg.Log.Info("a dataset was fetched", "dataset", want.Name, "uid", r.uid, "from_source_bytes", r.sourced, "from_peers_bytes", r.peered)
	return nil
}

// file brings one file to its place, verified.
func (s *Store) file(ctx context.Context, r *replica, j *journey, want *dataset.Wanted, i int, room int64) (dataset.Content, error) {
	file := want.Files[i]
	place, way := s.path(r.uid, dirFiles, file.Path), s.path(r.uid, dirFetch, strconv.Itoa(i))
	if info, err := os.Lstat(place); err == nil { // it was verified before it came here; how the disk has kept it is verified now
		if transfer.Verify(place, file) == nil {
			s.came(r, info.Size(), nil)
			return s.chunk(r, place, i)
		}
		if err := os.Remove(place); err != nil {
			return dataset.Content{}, err
		}
	}
	if err := s.bring(ctx, r, j, want, i, way, room); err != nil {
		return dataset.Content{}, err
	}
	failpoint.Hit("replica.before-place")
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return dataset.Content{}, err
	}
	if err := durablefile.Rename(way, place); err != nil {
		return dataset.Content{}, err
	}
	return s.chunk(r, place, i)
}

// bring fetches a file from peers, where the leader names some, or from its sources, and verifies it.
func (s *Store) bring(ctx context.Context, r *replica, j *journey, want *dataset.Wanted, i int, way string, room int64) error {
	file := want.Files[i]
	if i < len(want.Contents) && want.Contents[i].SizeBytes > 0 && len(want.Peers) > 0 && s.cfg.Peers != nil {
		if s.fromPeers(ctx, r, j, want, i, way) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	result, err := s.cfg.Fetcher.Fetch(ctx, transfer.File{DatasetFile: file, Credential: want.Credential, MostBytes: room}, way,
		func(bytes int64) { s.came(r, bytes, &r.sourced) })
	j.fromSources(result.Passages)
	for _, problem := range result.Problems {
		s.cfg.Log.WarnContext(ctx, "a source of a dataset failed; another one sent the file", "dataset", want.Name, "file", file.Path, "problem", problem)
	}
	return err
}

// fromPeers fetches a file from other nodes, and reports whether it came and is the one that the dataset describes: what a peer says of it is not believed.
func (s *Store) fromPeers(ctx context.Context, r *replica, j *journey, want *dataset.Wanted, i int, way string) bool {
	file, began := want.Files[i], time.Now()
	var came int64
	err := s.cfg.Peers.FetchFile(ctx, nodeimages.File{Root: want.Contents[i].Root(), Path: way}, want.Peers, func(bytes int64) {
		came += bytes
		s.came(r, bytes, &r.peered)
	})
	j.fromPeers(want.Peers, came, began)
	if err == nil {
		err = transfer.Verify(way, file)
	}
	if err == nil {
		return true
	}
	s.came(r, -came, nil)
	_ = os.Remove(way)
	s.cfg.Log.WarnContext(ctx, "a file of a dataset can't be had from other nodes; asking its sources", "dataset", want.Name, "file", file.Path, "error", err)
	return false
}

// chunk makes the chunk list of a verified file, by which nodes pass it on.
func (s *Store) chunk(r *replica, place string, i int) (dataset.Content, error) {
	f, err := os.Open(place)
	if err != nil {
		return dataset.Content{}, err
	}
	defer func() { _ = f.Close() }()
	blob, list, err := image.MakeChunks(f)
	if err != nil {
		return dataset.Content{}, err
	}
	if err := os.WriteFile(s.path(r.uid, dirChunks, strconv.Itoa(i)), list, 0o644); err != nil {
		return dataset.Content{}, err
	}
	return dataset.Content{SizeBytes: blob.SizeBytes, SHA256: blob.Digest, Chunks: image.DigestOf(list), ListBytes: int64(len(list))}, nil
}

// came notes bytes that are there now, and where they came from. What people see of it changes in steps of a twentieth.
func (s *Store) came(r *replica, bytes int64, from *int64) {
	s.mu.Lock()
	r.held += bytes
	if from != nil && bytes > 0 {
		*from += bytes
	}
	step := max(r.expected()/20, 1<<20)
	tell := r.held-r.told >= step || r.told > r.held
	if tell {
		r.told = r.held
	}
	s.mu.Unlock()
	if tell {
		s.cfg.Changed()
	}
}

// check verifies a whole replica again. What is wrong is removed at once, and fetched again.
func (s *Store) check(r *replica, want *dataset.Wanted, rec *record) error {
	byPath := map[string]api.DatasetFile{}
	for _, f := range want.Files {
		byPath[f.Path] = f
	}
	var bad []string
	for _, p := range rec.Paths {
		place := s.path(r.uid, dirFiles, p)
		if err := transfer.Verify(place, byPath[p]); err == nil {
			continue
		}
		if len(bad) == 0 { // after a crash, what is left is no whole replica
			if err := s.unmark(r); err != nil {
				return err
			}
		}
		bad = append(bad, p)
		if err := os.Remove(place); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	if len(bad) > 0 {
		s.mu.Lock()
		r.message = ""
		s.mu.Unlock()
		s.cfg.Log.Warn("files of a replica had changed on the disk; they are fetched again", "dataset", want.Name, "files", bad)
		return nil // the loop goes on with what is missing now
	}
	next := *rec
	next.Checked = want.Checks
	if err := s.markWhole(r, &next); err != nil {
		return fmt.Errorf("the check can't be noted: %w", err)
	}
	return nil
}

// unmark makes a replica one that is not whole.
func (s *Store) unmark(r *replica) error {
	if err := os.Remove(s.path(r.uid, fileRecord)); err != nil && !os.IsNotExist(err) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.record = nil
	s.share()
	return nil
}
