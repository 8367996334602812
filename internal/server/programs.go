package server

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/bootbin"
	"github.com/nearmetal/nearmetal/internal/machine/initrd"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

// self is the running program, whatever became of its file since.
const self = "/proc/self/exe"

// programs are what machines run that is in no image, since it is this release's: the boot agent, as an initrd, and the node agent, which is
// this program. What is compressed is kept on disk, so that only the first start of a release takes the time.
type programs struct {
	bootAgent, nodeAgent, nodeAgentGzip image.Blob
	files                               map[image.Digest]string
}

// openPrograms prepares them below dir.
func openPrograms(dir string) (*programs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &programs{files: map[image.Digest]string{}}
	agent, err := bootbin.Binary()
	if err != nil {
		return nil, err
	}
	if p.nodeAgent, err = describe(self); err != nil {
		return nil, fmt.Errorf("read the running program: %w", err)
	}
	p.files[p.nodeAgent.Digest] = self
	p.nodeAgentGzip, err = p.keep(filepath.Join(dir, "agent-"+p.nodeAgent.Digest.Hex()+".gz"), func(w io.Writer) error {
		f, err := os.Open(self)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		compressor := gzip.NewWriter(w)
		_, err = io.Copy(compressor, f)
		return errors.Join(err, compressor.Close())
	})
	if err != nil {
		return nil, fmt.Errorf("compress the node agent: %w", err)
	}
	p.bootAgent, err = p.keep(filepath.Join(dir, "boot-"+image.DigestOf(agent).Hex()+".cpio.zst"), func(w io.Writer) error {
		_, err := initrd.Agent(w, agent)
		return err
	})
	return p, err
}

// keep makes a file unless it is there, whole or not at all, and adds it.
func (p *programs) keep(path string, write func(io.Writer) error) (image.Blob, error) {
	if _, err := os.Stat(path); err != nil {
		var content bytes.Buffer
		if err := write(&content); err != nil {
			return image.Blob{}, err
		}
		if err := os.WriteFile(path+".new", content.Bytes(), 0o600); err != nil {
			return image.Blob{}, err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return image.Blob{}, err
		}
	}
	blob, err := describe(path)
	p.files[blob.Digest] = path
	return blob, err
}

// describe names a file's content.
func describe(path string) (image.Blob, error) {
	f, err := os.Open(path)
	if err != nil {
		return image.Blob{}, err
	}
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	return image.Blob{Digest: image.Digest("sha256:" + hex.EncodeToString(hash.Sum(nil))), SizeBytes: size}, err
}

// withPrograms adds the programs to what network boot serves.
type withPrograms struct {
	netboot.Blobs
	*programs
}

// Open opens a program or an image's content.
func (b withPrograms) Open(digest image.Digest) (netboot.Blob, error) {
	path, ok := b.files[digest]
	if !ok {
		return b.Blobs.Open(digest)
	}
	return netboot.OpenFile(path)
}
