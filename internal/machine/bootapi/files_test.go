package bootapi_test

import (
	"bytes"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// memberFiles are archives by digest.
type memberFiles map[image.Digest]string

func (m memberFiles) open(digest image.Digest) (io.ReadSeekCloser, error) {
	text, ok := m[digest]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return struct {
		io.ReadSeeker
		io.Closer
	}{bytes.NewReader([]byte(text)), io.NopCloser(nil)}, nil
}

func (s *site) files(session string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, boot.FilesPath, nil)
	r.Header.Set("Authorization", "Bearer "+session)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func TestFilesOfAPausedMemberAreForTheBootThatTheyBelongToAlone(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootMember)
	before, status, detail := s.hello(s.claims(3, api.BootMember), "once")
	if status != http.StatusOK || before.Files != nil {
		t.Fatalf("a boot without files: %d %s: %+v", status, detail, before.Files)
	}
	if w := s.files(before.Session); w.Code != http.StatusNotFound {
		t.Errorf("files of a boot without any: %d %s", w.Code, w.Body)
	}
	s.boots(api.Boot{Files: &api.SavedFiles{Digest: "sha256:there", Bytes: 9}})
	now, status, detail := s.hello(s.claims(4, api.BootMember), "twice")
	if status != http.StatusOK || now.Files == nil || *now.Files != (image.Blob{Digest: "sha256:there", SizeBytes: 9}) {
		t.Fatalf("a boot with files: %d %s: %+v", status, detail, now.Files)
	}
	if w := s.files(now.Session); w.Code != http.StatusOK || w.Body.String() != "the files" {
		t.Errorf("its files: %d %s", w.Code, w.Body)
	}
	for name, session := range map[string]string{"of the boot before": before.Session, "of nobody": "x"} {
		if w := s.files(session); w.Code == http.StatusOK {
			t.Errorf("the session %s gets files: %s", name, w.Body)
		}
	}
	// Once the machine is ready its users could ask.
	s.phase(api.MachineReady, api.BootMember, 4)
	if w := s.files(now.Session); w.Code != http.StatusGone {
		t.Errorf("a machine that is ready: %d %s", w.Code, w.Body)
	}
}
