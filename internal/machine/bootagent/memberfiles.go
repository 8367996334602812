package bootagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// fillTries is how often the files of a member are fetched, tries not counted in which the server was not reached.
const fillTries = 3

// fillRoot returns what lays the files of the member into the upper directory of the root, which it had changed before its pause; nil where there are none.
// Generated accounts are merged with those among them (package generatedfiles). pause waits before another try.
func (a *Agent) fillRoot(ctx context.Context, pause func(ctx context.Context, try int) error) func(upper string) error {
	files := a.welcome.Files
	if files == nil {
		return nil
	}
	return func(upper string) error {
		began := time.Now()
		for try, answered := 0, 0; ; try++ {
			reached, err := a.fetchFiles(ctx, upper, *files)
			if err == nil {
				a.log.Info("files of before the pause are in the root", "bytes", files.SizeBytes, "took", time.Since(began))
				return nil
			}
			if reached {
				answered++
			}
			if isFinal(err) || answered == fillTries {
				return fmt.Errorf("the files of before the pause: %w", err)
			}
			a.log.Warn("the files of before the pause can't be fetched; trying again", "error", err)
			if err := errors.Join(emptyDir(upper), pause(ctx, min(try, 4))); err != nil {
				return err
			}
		}
	}
}

// fetchFiles unpacks the archive as it comes. An archive that is not the named one is an error, after which the directory must be emptied.
func (a *Agent) fetchFiles(ctx context.Context, upper string, files image.Blob) (reached bool, err error) {
	resp, err := a.calls.send(ctx, http.MethodGet, boot.FilesPath, nil)
	if err != nil {
		var refused *refusedError
		return errors.As(err, &refused), err
	}
	defer resp.Body.Close()
	dir, err := os.Open(upper)
	if err != nil {
		return true, err
	}
	defer dir.Close()
	sum := sha256.New()
	body := io.TeeReader(io.LimitReader(resp.Body, files.SizeBytes+1), sum)
	// What they may hold is bounded by the file system, which is memory.
	if _, err := archive.Unpack(ctx, body, archive.Target{Dir: dir, VolumeBytes: maxFilesBytes, Layer: true}); err != nil {
		return true, err
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return true, err
	}
	if got := image.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != files.Digest {
		return true, fmt.Errorf("%w: it is %s, not %s", image.ErrDigest, got, files.Digest)
	}
	return true, nil
}

// maxFilesBytes is what files of a member may seem to hold at most, holes counted in part (archive.HoleFactor).
const maxFilesBytes = 64 << 30

// emptyDir removes what an attempt left.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}
