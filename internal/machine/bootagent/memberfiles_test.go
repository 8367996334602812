package bootagent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// archiveOf is an archive of a file, and of one that is deleted.
func archiveOf(t *testing.T, text string) []byte {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "opt/solver")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("solver:x:999:999::/:/bin/sh\n"), 0o644),
		os.Symlink("/etc/shadow", filepath.Join(dir, "etc/group"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "opt"), 0o750), os.WriteFile(path, []byte(text), 0o700), os.Chmod(path, 0o755|os.ModeSetuid),
		unix.Mknod(filepath.Join(dir, "opt/gone"), unix.S_IFCHR, 0)); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	var out bytes.Buffer
	if _, err := archive.Pack(t.Context(), archive.Source{Dir: in, VolumeBytes: 1 << 20, Scratch: t.TempDir(), Layer: true}, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestFilesOfBeforeAPauseAreLaidIntoTheRootOnceTheyAreWhole(t *testing.T) {
	needs.Root(t, "makes files of other users")
	atOnce := func(ctx context.Context, _ int) error { return ctx.Err() }
	good, other := archiveOf(t, "solved"), archiveOf(t, "")
	for name, tc := range map[string]struct {
		answers [][]byte // nil: none, and the server is busy
		words   string
	}{
		"at once":                      {[][]byte{good}, ""},
		"after one that broke off":     {[][]byte{good[:len(good)-5], good}, ""},
		"after a server that was busy": {[][]byte{nil, good}, ""},
		"never those of somebody else": {[][]byte{other, other, other}, "it is sha256:"},
		"never what is gone":           {[][]byte{[]byte("gone")}, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != boot.FilesPath || asked == len(tc.answers) {
					t.Errorf("request %d for %s", asked, r.URL)
					return
				}
				answer := tc.answers[asked]
				asked++
				switch {
				case answer == nil:
					w.WriteHeader(http.StatusServiceUnavailable)
				case string(answer) == "gone":
					w.WriteHeader(http.StatusGone)
				default:
					_, _ = w.Write(answer)
				}
			}))
			defer server.Close()
			a := &Agent{log: slog.New(slog.DiscardHandler), calls: &calls{base: server.URL, client: server.Client()}}
			a.welcome.Files = &image.Blob{Digest: image.DigestOf(good), SizeBytes: int64(max(len(good), len(other)))}
			upper := t.TempDir()
			err := a.fillRoot(t.Context(), atOnce)(upper)
			if tc.words != "" {
				if err == nil || !strings.Contains(err.Error(), tc.words) {
					t.Errorf("%v, want an error with %q", err, tc.words)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(upper, "opt/solver"))
			if text, read := os.ReadFile(filepath.Join(upper, "opt/solver")); err != nil || read != nil || string(text) != "solved" || info.Mode() != 0o755|os.ModeSetuid {
				t.Errorf("the file is %q, %v (%v, %v)", text, info, err, read)
			}
			if text, err := os.ReadFile(filepath.Join(upper, "etc/passwd")); err != nil || !strings.HasPrefix(string(text), "solver:") {
				t.Errorf("the accounts are %q, %v", text, err)
			}
			var stat unix.Stat_t
			if err := unix.Stat(filepath.Join(upper, "opt/gone"), &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != 0 {
				t.Errorf("the deleted file is %+v, %v", stat, err)
			}
		})
	}
	if a := (&Agent{}); a.fillRoot(t.Context(), atOnce) != nil {
		t.Error("a boot without files fills its root")
	}
}
