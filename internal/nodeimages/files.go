package nodeimages

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// File is a file that nodes pass on like the root of an image, such as one of a dataset. No signature says what it is: whoever fetches it must know.
type File struct {
	// Root is its size and digest, with those of its chunk list.
	Root image.Root
	// Path is where it is, or is to be, and List where its chunk list is; the list of a file that is fetched is not kept.
	Path, List string
}

// errNoPeer reports that no peer has what is wanted.
var errNoPeer = errors.New("no other node has it")

// filePatience is how long peers may send nothing of a file.
const filePatience = 20 * time.Second

// ShareFiles replaces the list of files that other nodes may read besides images.
func (s *Store) ShareFiles(files []File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files, s.lists = map[image.Digest]File{}, map[image.Digest]File{}
	for _, f := range files {
		s.files[f.Root.Digest], s.lists[f.Root.Chunks.Digest] = f, f
	}
}

// openFile opens a shared file or its chunk list.
func (s *Store) openFile(d image.Digest) (*os.File, error) {
	s.mu.Lock()
	path := s.files[d].Path
	if path == "" {
		path = s.lists[d].List
	}
	s.mu.Unlock()
	if path == "" {
		return nil, os.ErrNotExist
	}
	return os.Open(path)
}

// FetchFile fetches a file from other nodes alone, and serves what has come to others meanwhile. Each chunk is verified, and the file as a whole. What an
// earlier call has left is gone on with, unless something else was fetched in between. It ends with an error when peers send nothing for a while.
func (s *Store) FetchFile(ctx context.Context, file File, peers []string, came func(bytes int64)) error {
	if len(peers) == 0 {
		return errNoPeer
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(filePatience, func() { cancel(fmt.Errorf("other nodes sent nothing of it for %s", filePatience)) })
	defer patience.Stop()
	s.mu.Lock()
	another := s.partial[file.Root.Digest] != nil
	s.mu.Unlock()
	if another {
		return fmt.Errorf("%s is being fetched already", short(file.Root.Digest))
	}
	f := newFetch(s, Wanted{Digest: file.Root.Digest, Peers: peers})
	f.file = &file
	f.arrived = func(bytes int64) {
		patience.Reset(filePatience)
		came(bytes)
	}
	defer func() {
		s.mu.Lock()
		s.forget(f)
		s.mu.Unlock()
	}()
	p, err := f.open(ctx, file.Root)
	if err != nil {
		return causeOf(ctx, err)
	}
	if _, held := p.state(); held > 0 {
		came(held)
	}
	if err := f.fill(ctx, p); err != nil {
		return causeOf(ctx, err)
	}
	return p.finish(file.Path)
}

// forget closes the parts that a fetch had; the lock is held.
func (s *Store) forget(f *fetch) {
	f.mu.Lock()
	parts := f.partials
	f.mu.Unlock()
	for _, p := range parts {
		p.close()
		maps.DeleteFunc(s.partial, func(_ image.Digest, other *partial) bool { return other == p })
	}
}
