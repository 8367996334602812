package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/archive"
)

// backupFile is a backup that a volume is made of.
type backupFile struct {
	in    io.Reader
	name  string
	bytes int64 // 0: not known
	close func()
	// failed is why it can't be read further.
	failed error
}

// Read implements io.Reader.
func (f *backupFile) Read(p []byte) (int, error) {
	n, err := f.in.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.failed = fmt.Errorf("reading %s: %w", f.name, err)
	}
	return n, err
}

// openBackup opens a backup, and lets a request have the bounds of the volume that was backed up where the user gave none. A file that is not whole is
// refused before anything is made.
func (a *app) openBackup(path string, wait *volumeWait, req *api.VolumeRequest) (*backupFile, error) {
	req.FromBackup = true
	switch {
	case wait.noWait:
		return nil, usage("--no-wait conflicts with --from-backup: the command sends the backup")
	case req.From != "":
		return nil, usage("--from conflicts with --from-backup: a volume begins as a snapshot or as a backup")
	case path == "":
		return nil, usage("--from-backup: name the file of the backup, or - for standard input")
	case path == "-":
		if req.Size == 0 {
			return nil, usage("--from-backup - needs --size: a backup tells at its end how large the volume was")
		}
		return &backupFile{in: a.Streams.In, name: "standard input", close: func() {}}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	size, err := boundsOf(file, path, req)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &backupFile{in: file, name: path, bytes: size, close: func() { _ = file.Close() }}, nil
}

// boundsOf reads the end of a file that is a backup, and returns its size. What can't be read twice, such as a FIFO, has none.
func boundsOf(file *os.File, path string, req *api.VolumeRequest) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		if req.Size == 0 {
			return 0, usage("--from-backup %s needs --size: it is not a file whose end can be read first", path)
		}
		return 0, nil
	}
	var tail archive.Tail
	if _, err := io.Copy(&tail, io.NewSectionReader(file, max(0, info.Size()-archive.TrailerBytes), archive.TrailerBytes)); err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	t, err := tail.Trailer()
	if err != nil {
		return 0, fmt.Errorf("%s is no whole backup of a volume: %w; nothing was made of it", path, err)
	}
	if req.Size == 0 && t.VolumeBytes == 0 {
		return 0, usage("--from-backup %s needs --size: the backup does not tell how large the volume was", path)
	}
	req.Size = cmp.Or(req.Size, api.Bytes(t.VolumeBytes))
	// The file system rounds its number of files. A volume that had the usual number for its size gets the usual number.
	if usual := int64(req.Size) / api.VolumeBytesPerFile; req.Files == 0 && t.VolumeFiles > usual+usual/8 {
		req.Files = t.VolumeFiles
	}
	return info.Size(), nil
}

// createFromBackup makes a volume of a backup, or sends the backup to a volume that waits for one.
func (a *app) createFromBackup(ctx context.Context, c *client.Client, req api.VolumeRequest, from *backupFile, timeout time.Duration) (api.VolumeStatus, error) {
	v, err := c.CreateVolume(ctx, req)
	if client.HasCode(err, "volume_exists") {
		v, err = waiting(ctx, c, req, err)
	}
	if err != nil {
		return v, err
	}
	v, err = a.awaitVolume(ctx, c, v, timeout, func(v *api.VolumeStatus) (bool, error) {
		switch {
		case v.DeletedAt != nil:
			return false, deletedMeanwhile(v)
		case v.Phase == api.VolumeReady:
			return false, &exitError{ExitConflict, fmt.Errorf("volume %q was made of another backup meanwhile", v.Name)}
		}
		return v.Import != nil && !v.Import.Receiving, noRoomYet(v, timeout)
	})
	if err != nil {
		return v, err
	}
	if err := a.sendBackup(ctx, c, &v, from, timeout); err != nil {
		return v, err
	}
	return a.awaitReady(ctx, c, v, timeout)
}

// waiting returns the volume that has the name of a request already, if it waits for a backup. exists is why it can't be made.
func waiting(ctx context.Context, c *client.Client, req api.VolumeRequest, exists error) (api.VolumeStatus, error) {
	name := req.Name
	if req.Project != "" {
		name = fullName(req.Project, name)
	}
	v, err := c.Volume(ctx, name)
	switch {
	case err != nil:
		return v, err
	case !v.FromBackup || v.DeletedAt != nil || v.Phase == api.VolumeReady || v.Phase == api.VolumeUnavailable:
		return v, exists
	case v.Size != req.Size:
		return v, &exitError{ExitConflict, fmt.Errorf("volume %q waits for a backup already, with a size of %s and not of %s; give --size %s, or resize it first: "+
			"nearmetal volume resize %s --size %s", v.Name, volumeBytes(v.Size), volumeBytes(req.Size), volumeBytes(v.Size), v.Name, volumeBytes(req.Size))}
	}
	return v, nil
}

// sendBackup sends a backup to the node of a volume, which waits for it, and returns nil once the node has it whole. A volume whose backup the node has
// refused is removed. An answer that the connection broke off before is waited for no longer than timeout, 0: for as long as it takes.
func (a *app) sendBackup(ctx context.Context, c *client.Client, v *api.VolumeStatus, from *backupFile, timeout time.Duration) error {
	stream, err := c.SendVolumeContent(ctx, v.UID)
	if err != nil {
		return fmt.Errorf("the backup was not sent: %w", err)
	}
	defer func() { _ = stream.Close() }()
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	sent, refused, err := a.send(stream, from)
	switch {
	case ctx.Err() != nil:
		return unlessInterrupted(ctx.Err(), "volume %q has no content yet; repeat the command to send the backup again, or delete it: nearmetal volume delete %s --now", v.Name, v.Name)
	case refused != nil:
		left := "nothing of it is left"
		if _, err := c.GiveUpVolumeImport(ctx, v.UID); err != nil && !client.HasCode(err, "volume_not_found") {
			left = fmt.Sprintf("it could not be removed (%v); delete it: nearmetal volume delete %s --now", err, v.Name)
		}
		return &exitError{ExitFailed, fmt.Errorf("volume %q was not made of %s: %w; %s", v.Name, from.name, refused, left)}
	case errors.Is(err, errUnanswered):
		return a.awaitOutcome(ctx, c, v, timeout)
	case err != nil:
		if now, gone := c.Volume(ctx, v.UID); client.HasCode(gone, "volume_not_found") || gone == nil && now.DeletedAt != nil {
			return deletedMeanwhile(v)
		}
		return &exitError{ExitFailed, fmt.Errorf("volume %q has no content yet: only %s of the backup were sent (%w); repeat the command to send the backup again, "+
			"or delete the volume: nearmetal volume delete %s --now", v.Name, volumeBytes(api.Bytes(sent)), err, v.Name)}
	}
	return nil
}

// errUnanswered reports that a backup was sent whole, and that the connection broke off before the node's answer.
var errUnanswered = errors.New("the node has not answered")

// awaitOutcome finds out whether a node has made a volume of a backup that was sent whole: it has, or it waits again.
func (a *app) awaitOutcome(ctx context.Context, c *client.Client, v *api.VolumeStatus, timeout time.Duration) error {
	now, err := c.Volume(ctx, v.UID) // the node may be about to start again: what it said before counts no more
	if err != nil {
		return err
	}
	_, err = a.awaitVolume(ctx, c, now, timeout, func(v *api.VolumeStatus) (bool, error) {
		switch {
		case v.DeletedAt != nil:
			return false, deletedMeanwhile(v)
		case v.Import != nil && !v.Import.Receiving:
			return false, &exitError{ExitFailed, fmt.Errorf("volume %q has no content yet: the connection broke off before the node had written all of it; "+
				"repeat the command to send the backup again, or delete the volume: nearmetal volume delete %s --now", v.Name, v.Name)}
		}
		return v.Phase == api.VolumeReady, nil
	})
	return err
}

// send sends a backup and reads the answer. refused is what the node answered; err is why there is no answer.
func (a *app) send(stream *client.Tunnel, from *backupFile) (sent int64, refused, err error) {
	p := a.progress()
	defer p.stop()
	t := a.transfer(p, "sent", from.bytes)
	copied, answered := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := t.copy(stream, from)
		if err == nil {
			p.say("sent " + volumeBytes(api.Bytes(t.done.Load())) + "; the node writes it to its disk")
		}
		copied <- err
		if err == nil {
			err = stream.CloseWrite()
		}
		if err != nil { // the node must not take what was sent for all
			_ = stream.Close()
		}
	}()
	var answer archive.Tail
	go func() {
		_, err := io.Copy(&answer, stream)
		_ = stream.Close() // the node may answer before it has all: nothing more is sent then
		answered <- err
	}()
	err = <-answered // standard input may never end: what is not sent yet is not waited for
	if _, told := answer.Trailer(); told == nil {
		return t.done.Load(), nil, nil
	} else if !errors.Is(told, archive.ErrDamaged) {
		return t.done.Load(), told, nil
	}
	select {
	case more := <-copied:
		if more == nil {
			return t.done.Load(), nil, errUnanswered
		}
		err = cmp.Or(from.failed, err, more)
	default:
	}
	return t.done.Load(), nil, cmp.Or(err, io.ErrUnexpectedEOF)
}
