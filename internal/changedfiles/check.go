package changedfiles

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/archive"
)

// The bounds of what is saved of a member.
const (
	// DefaultMaxBytes is how much its files may hold, holes included, and DefaultMaxFiles how many there may be.
	DefaultMaxBytes = 64 << 30
	DefaultMaxFiles = 1 << 20
)

// Policy says what an archive of changed files may have.
type Policy struct {
	// MaxBytes bounds what its files hold together, holes included, and MaxFiles how many there are.
	MaxBytes, MaxFiles int64
	// Secrets are marks (see Marks) of the keys of the cluster itself, which no file may have.
	Secrets [][]byte
	// KeepKeys are absolute paths of files that may be private keys.
	KeepKeys []string
	// Use is what the files are saved for. Private keys that are the users' own stay with the member.
	Use Use
}

// The errors of changed files.
var (
	// ErrTooLarge reports more files, or more in them, than may be saved.
	ErrTooLarge = errors.New("the changed files are too large")
	// ErrNotOmitted reports files that are never saved. An agent that follows the rules does not send them.
	ErrNotOmitted = errors.New("the member sent what is never saved")
)

// mostTold bounds how many files an error names.
const mostTold = 20

// KeysError reports the files that have keys, by their absolute paths.
type KeysError struct {
	// Private has the files with private keys, and Own those with keys of the cluster itself. Each names at most mostTold.
	Private, Own []string
	// More: there are files besides.
	More bool
}

func (e *KeysError) Error() string {
	var parts []string
	if len(e.Own) > 0 {
		parts = append(parts, "keys of the cluster itself are in "+quoted(e.Own))
	}
	if len(e.Private) > 0 {
		parts = append(parts, "private keys are in "+quoted(e.Private))
	}
	text := strings.Join(parts, "; ")
	if e.More {
		text += ", and in others"
	}
	return text
}

func quoted(paths []string) string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = fmt.Sprintf("%q", p)
	}
	return strings.Join(out, ", ")
}

// finder gathers the files that have keys.
type finder struct {
	scanner
	keep  []string
	use   Use
	found KeysError
}

// file searches what a file holds.
func (f *finder) file(name string, content io.Reader) error {
	f.reset()
	if _, err := io.Copy(&f.scanner, content); err != nil {
		return err
	}
	f.note(name)
	return nil
}

// note notes a file in which something was found.
func (f *finder) note(name string) {
	at := path.Join("/", name)
	var list *[]string
	switch {
	case f.own:
		list = &f.found.Own
	case f.key && f.use == ForEnvironment && !slices.Contains(f.keep, at):
		list = &f.found.Private
	default:
		return
	}
	if len(*list) == mostTold {
		f.found.More = true
		return
	}
	*list = append(*list, at)
}

func (f *finder) err() error {
	if len(f.found.Own)+len(f.found.Private) > 0 {
		return &f.found
	}
	return nil
}

// CheckArchive reads an archive of changed files, which its member's users may have made, to its end. It returns a *KeysError, ErrTooLarge, ErrNotOmitted, or an error
// of package archive.
func CheckArchive(ctx context.Context, in io.Reader, p Policy) (archive.Trailer, error) {
	f := finder{scanner: scanner{secrets: p.Secrets}, keep: p.KeepKeys, use: p.Use}
	var bytes, files int64
	trailer, err := archive.Walk(ctx, in, func(h *tar.Header, content io.Reader) error {
		files++
		bytes += h.Size
		switch {
		case files > p.MaxFiles:
			return fmt.Errorf("%w: there are more than %d", ErrTooLarge, p.MaxFiles)
		case h.Size > p.MaxBytes || bytes > p.MaxBytes:
			return fmt.Errorf("%w: they hold more than %d MiB", ErrTooLarge, p.MaxBytes>>20)
		case p.Use.Omitted(h.Name, h.Typeflag == tar.TypeDir):
			return ErrNotOmitted
		case h.Typeflag == tar.TypeChar && (h.Devmajor != 0 || h.Devminor != 0) || h.Typeflag == tar.TypeBlock:
			return fmt.Errorf("%w: it is a device", archive.ErrRefused)
		}
		for _, value := range h.PAXRecords {
			if err := f.file(h.Name, strings.NewReader(value)); err != nil {
				return err
			}
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		return f.file(h.Name, content)
	})
	if err != nil {
		return archive.Trailer{}, err
	}
	return trailer, f.err()
}

// CheckTree searches all files below a directory for private keys, without following links, and refuses what is never saved. It returns a *KeysError or
// ErrNotOmitted.
func CheckTree(ctx context.Context, dir string, keepKeys []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f := finder{keep: keepKeys}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case name != "." && ForEnvironment.Omitted(name, d.IsDir()):
			return fmt.Errorf("%q: %w", path.Join("/", name), ErrNotOmitted)
		case !d.Type().IsRegular():
			return nil
		}
		file, err := root.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		return f.file(name, file)
	})
	if err != nil {
		return err
	}
	return f.err()
}
