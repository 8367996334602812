package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// backupText is a backup of a volume of 2 GiB.
func backupText(t *testing.T, change func(*archive.Trailer)) []byte {
	t.Helper()
	trailer := archive.Trailer{Files: 7, VolumeBytes: 2 << 30, VolumeFiles: 2 << 30 / api.VolumeBytesPerFile}
	if change != nil {
		change(&trailer)
	}
	out := bytes.NewBufferString(strings.Repeat("content", 1000))
	if err := trailer.Write(out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// backupAt writes a file.
func backupAt(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.tar.zst")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// takesBackup answers whoever sends a backup to the volume.
func (f *fake) takesBackup(answer func(in io.Reader, conn net.Conn)) {
	f.mux.HandleFunc("POST /v1/volumes/vvvvvvvvvvvv/content", func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			f.t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nearmetal-tunnel\r\n\r\n")
		answer(buffered, conn)
	})
}

// importing is a volume whose node waits for the backup, and whole one that has it.
func importing(v *api.VolumeStatus) {
	creating(v)
	v.Phase, v.FromBackup, v.Import, v.Size = api.VolumeImporting, true, &api.VolumeImport{}, 2<<30
}

func whole(v *api.VolumeStatus) { v.FromBackup, v.Size = true, 2<<30 }

func TestAVolumeIsMadeOfABackup(t *testing.T) {
	data := backupText(t, nil)
	path := backupAt(t, data)
	for _, c := range []struct {
		name string
		args []string
		in   io.Reader
		want string
	}{
		{"a file", []string{path}, nil, `{"name":"data","size":"2GiB","from_backup":true}`},
		{"a file, larger", []string{path, "--size", "4GiB", "--access", "shared"}, nil, `{"name":"data","size":"4GiB","access":"shared","from_backup":true}`},
		{"standard input", []string{"-", "--size", "2GiB"}, bytes.NewReader(data), `{"name":"data","size":"2GiB","from_backup":true}`},
		{
			"a file of a volume with many files",
			[]string{backupAt(t, backupText(t, func(t *archive.Trailer) { t.VolumeFiles = 1 << 20 }))},
			nil,
			`{"name":"data","size":"2GiB","files":1048576,"from_backup":true}`,
		},
	} {
		f := newFake(t)
		var created string
		f.on("POST /v1/volumes", func(_ *http.Request, body string) any { created = body; return dataVolume(creating) })
		f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", dataVolume(creating), dataVolume(importing), dataVolume(importing), dataVolume(whole))
		got := 0
		f.takesBackup(func(in io.Reader, conn net.Conn) {
			text, err := io.ReadAll(in)
			if err != nil {
				t.Error(err)
			}
			got = len(text)
			_ = archive.Trailer{}.Write(conn)
		})
		sh := f.shell()
		sh.in = c.in
		r := sh.run(t, append([]string{"volume", "create", "data", "--from-backup"}, c.args...)...)
		has(t, r, 0, "Phase:        ready\n", "From:         a backup\n")
		if created != c.want || got != len(data) {
			t.Errorf("%s: created by %s, want %s; %d bytes were sent, want %d", c.name, created, c.want, got, len(data))
		}
	}
}

func TestABackupThatIsNotWholeIsSentNowhere(t *testing.T) {
	f := newFake(t)
	data := backupText(t, nil)
	old := backupAt(t, backupText(t, func(t *archive.Trailer) { t.VolumeBytes, t.VolumeFiles = 0, 0 }))
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{cli.ExitFailed, "no whole backup of a volume: the archive is damaged or incomplete", []string{backupAt(t, data[:len(data)-1])}},
		{cli.ExitFailed, "no whole backup of a volume", []string{backupAt(t, nil)}},
		{cli.ExitFailed, "the disk was broken; nothing was made of it", []string{backupAt(t, backupText(t, func(t *archive.Trailer) { t.Failure = "the disk was broken" }))}},
		{cli.ExitFailed, "no such file", []string{filepath.Join(t.TempDir(), "none")}},
		{cli.ExitUsage, "does not tell how large the volume was", []string{old}},
		{cli.ExitUsage, "--from-backup - needs --size", []string{"-"}},
		{cli.ExitUsage, "name the file", []string{""}},
		{cli.ExitUsage, "--no-wait conflicts", []string{old, "--size", "1GiB", "--no-wait"}},
		{cli.ExitUsage, "--from conflicts", []string{old, "--size", "1GiB", "--from", "other"}},
	} {
		has(t, f.shell().run(t, append([]string{"volume", "create", "data", "--from-backup"}, c.args...)...), c.code, c.want)
	}
	f.expect()
}

func TestAVolumeOfARefusedBackupIsRemoved(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/volumes", dataVolume(importing))
	f.fixed("GET /v1/volumes/vvvvvvvvvvvv", dataVolume(importing))
	f.takesBackup(func(_ io.Reader, conn net.Conn) { // it answers before it has all
		_ = archive.WriteFailure(conn, errors.New("the volume holds more than that"))
	})
	f.fixed("DELETE /v1/volumes/vvvvvvvvvvvv/content", dataVolume(importing))
	sh := f.shell()
	in, out := io.Pipe() // its end never comes
	defer out.Close()
	sh.in = in
	go func() { _, _ = out.Write(make([]byte, 1<<20)) }()
	r := sh.run(t, "volume", "create", "data", "--from-backup", "-", "--size", "2GiB")
	has(t, r, cli.ExitFailed, `volume "data" was not made of standard input: the volume holds more than that; nothing of it is left`)
	if asked := f.requests(); asked[len(asked)-1] != "DELETE /v1/volumes/vvvvvvvvvvvv/content" {
		t.Errorf("asked %q, want the volume to be removed at the end", asked)
	}
}

func TestABackupWhoseSendingBrokeOffIsSentAgain(t *testing.T) {
	f := newFake(t)
	data := backupText(t, nil)
	path := backupAt(t, data)
	exists := &api.Problem{Code: "volume_exists", Status: http.StatusConflict, Detail: "it exists"}
	f.inTurn("POST /v1/volumes", dataVolume(importing), exists)
	f.fixed("GET /v1/volumes/data", dataVolume(importing))
	f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", dataVolume(importing), dataVolume(importing), dataVolume(importing), dataVolume(whole))
	tries := 0
	f.takesBackup(func(in io.Reader, conn net.Conn) {
		if tries++; tries == 1 {
			_, _ = io.ReadFull(in, make([]byte, 100))
			return
		}
		if text, err := io.ReadAll(in); err != nil || len(text) != len(data) {
			t.Errorf("sent again: %d bytes, %v", len(text), err)
		}
		_ = archive.Trailer{}.Write(conn)
	})
	has(t, f.shell().run(t, "volume", "create", "data", "--from-backup", path), cli.ExitFailed,
		`volume "data" has no content yet: `, "repeat the command to send the backup again", "nearmetal volume delete data --now")
	has(t, f.shell().run(t, "volume", "create", "data", "--from-backup", path, "--size", "4GiB"), cli.ExitConflict, "with a size of 2GiB and not of 4GiB")
	has(t, f.shell().run(t, "volume", "create", "data", "--from-backup", path), 0, "Phase:        ready\n")
	other := newFake(t)
	other.fixed("POST /v1/volumes", exists)
	other.fixed("GET /v1/volumes/data", dataVolume())
	has(t, other.shell().run(t, "volume", "create", "data", "--from-backup", path), cli.ExitConflict, "it exists")
}

func TestABackupThatWasSentWholeMayHaveArrivedWithoutAnAnswer(t *testing.T) {
	path := backupAt(t, backupText(t, nil))
	away := dataVolume(importing, func(v *api.VolumeStatus) { v.Phase, v.Import = api.VolumeUnavailable, nil })
	for _, c := range []struct {
		name string
		then api.VolumeStatus
		code int
		want string
	}{
		{"it has", dataVolume(whole), 0, "Phase:        ready\n"},
		{"it has not", dataVolume(importing), cli.ExitFailed, "broke off before the node had written all of it; repeat the command"},
		{"it was deleted", dataVolume(importing, func(v *api.VolumeStatus) { v.DeletedAt = &t0 }), cli.ExitConflict, "was deleted before it was ready"},
	} {
		f := newFake(t)
		f.fixed("POST /v1/volumes", dataVolume(importing))
		f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", away, away, c.then)
		f.takesBackup(func(in io.Reader, _ net.Conn) { _, _ = io.Copy(io.Discard, in) })
		r := f.shell().run(t, "volume", "create", "data", "--from-backup", path)
		t.Log(c.name)
		has(t, r, c.code, c.want)
	}
}

func TestAFileThatBreaksOffIsNotEnded(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/volumes", dataVolume(importing))
	f.fixed("GET /v1/volumes/vvvvvvvvvvvv", dataVolume(importing))
	ended := make(chan error, 1)
	f.takesBackup(func(in io.Reader, conn net.Conn) {
		_, err := io.Copy(io.Discard, in)
		ended <- err
		_, err = conn.Write([]byte("there?"))
		if err == nil {
			_, err = conn.Write([]byte("still there?"))
		}
		ended <- err
	})
	sh := f.shell()
	sh.in = io.MultiReader(strings.NewReader(strings.Repeat("x", 2048)), iotest.ErrReader(errors.New("the disk is broken")))
	has(t, sh.run(t, "volume", "create", "data", "--from-backup", "-", "--size", "2GiB"), cli.ExitFailed,
		"only 2KiB of the backup were sent (reading standard input: the disk is broken)", "repeat the command")
	<-ended
	if err := <-ended; err == nil {
		t.Error("the sender has ended its backup as if it were whole, and waits for an answer")
	}
}
