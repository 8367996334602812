package serialconsole

import (
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
