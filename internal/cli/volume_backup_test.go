package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/config"
)

func TestABackupIsThereWhenItIsWhole(t *testing.T) {
	var whole, failed bytes.Buffer
	whole.WriteString(strings.Repeat("content", 1000))
	if err := errors.Join(archive.Trailer{Files: 7, Skipped: 1}.Write(&whole), archive.WriteFailure(&failed, errors.New("the disk is broken"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		from io.Reader
		want string
	}{
		{"whole", bytes.NewReader(whole.Bytes()), ""},
		{"cut", bytes.NewReader(whole.Bytes()[:whole.Len()-1]), "damaged or incomplete"},
		{"nothing", strings.NewReader(""), "damaged or incomplete"},
		{"with a reason", io.MultiReader(strings.NewReader("begin"), &failed), "the disk is broken"},
		{"broken off", io.MultiReader(strings.NewReader("begin"), iotest.ErrReader(io.ErrUnexpectedEOF)), "unexpected EOF"},
	} {
		path := filepath.Join(t.TempDir(), "file")
		a := &app{Invocation: Invocation{Streams: config.Streams{Out: io.Discard, Err: io.Discard}, Now: time.Now}}
		got, n, err := a.keepBackup(c.from, path)
		data, _ := os.ReadFile(path)
		if c.want == "" && (err != nil || got.Files != 7 || n != int64(whole.Len()) || !bytes.Equal(data, whole.Bytes())) {
			t.Errorf("%s: %+v, %d bytes, %v", c.name, got, n, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || data != nil) {
			t.Errorf("%s: %v, and the file has %d bytes", c.name, err, len(data))
		}
		passed := bytes.NewBuffer(nil)
		a.Streams.Out = passed
		if c.want == "" {
			got, n, err := a.passBackup(bytes.NewReader(whole.Bytes()), "-")
			if err != nil || got.Files != 7 || n != int64(whole.Len()) || !bytes.Equal(passed.Bytes(), whole.Bytes()) {
				t.Errorf("%s: passed on: %+v, %d bytes, %v", c.name, got, n, err)
			}
		}
		if left, err := filepath.Glob(path + ".part"); err != nil || len(left) > 0 {
			t.Errorf("%s: left %q, %v", c.name, left, err)
		}
	}
}
