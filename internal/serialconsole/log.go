package serialconsole

import (
	"bytes"
	"errors"
	"os"
)

// log keeps the end of what a machine prints, in two files: when the newer one is full it becomes the older one.
type log struct{ path string }

// append adds to the log. What can't be written is missing there; the console goes on.
func (l log) append(p []byte) {
	for len(p) > 0 {
		n := min(len(p), KeptBytes/2)
		_ = l.write(p[:n])
		p = p[n:]
	}
}

func (l log) write(p []byte) error {
	if info, err := os.Lstat(l.path); err == nil && info.Size()+int64(len(p)) > KeptBytes/2 {
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(p)
	return errors.Join(err, file.Close())
}

// Kept reads the end of what a machine has printed from the files of its console, also when nothing reads the console now.
func Kept(path string) []byte {
	older, _ := os.ReadFile(path + ".1")
	newer, _ := os.ReadFile(path)
	return append(older, newer...)
}

// again returns the note that separates what a machine has printed since its last start from what it printed before.
func again() []byte { return notice("the machine starts again") }

// Restarts notes in the files of a console that its machine is about to start again. Nothing may read the console now. The first start needs no note.
func Restarts(path string) error {
	if len(Kept(path)) == 0 {
		return nil
	}
	return log{path}.write(again())
}

// SinceStart reads the end of what a machine has printed since its last start.
func SinceStart(path string) []byte {
	kept := Kept(path)
	if at := bytes.LastIndex(kept, again()); at >= 0 {
		return kept[at+len(again()):]
	}
	return kept
}
