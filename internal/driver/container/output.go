package container

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
)

const (
	// outputMost is how many bytes of a member's output may gather before the older half is dropped. It is enforced when the
	// member is observed, so a member that prints fast can pass it for a while.
	outputMost = 1 << 20
	// outputShown is how much of it an observation of an ended member quotes.
	outputShown = 400
)

// boundOutput drops the older part of what a member's first process printed. The process appends (O_APPEND), so what it
// prints while this is at work lands somewhere in the file, and its descriptor stays good.
func boundOutput(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= outputMost {
		return nil
	}
	if err != nil {
		return err
	}
	tail, err := readTail(path, outputMost/2)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(tail)
	return errors.Join(err, file.Close())
}

func readTail(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	start := max(0, info.Size()-most)
	tail := make([]byte, info.Size()-start)
	n, err := file.ReadAt(tail, start)
	return tail[:n], err
}

// lastOutput returns the end of what a member printed, fit for a message, or "".
func lastOutput(path string) string {
	tail, err := readTail(path, outputShown)
	if err != nil || len(tail) == 0 {
		return ""
	}
	return readable(tail)
}

// rememberExit keeps the exit code for those who ask later; losing it costs only the code.
func (d *Driver) rememberExit(id string, code int) {
	path := d.path(id, fileExit)
	if err := os.WriteFile(path, []byte(strconv.Itoa(code)), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("a member's exit code can't be kept", "member", id, "err", err)
	}
}

func (d *Driver) recallExit(id string) *int {
	text, err := os.ReadFile(d.path(id, fileExit))
	if err != nil {
		return nil
	}
	code, err := strconv.Atoi(string(text))
	if err != nil {
		return nil
	}
	return &code
}
