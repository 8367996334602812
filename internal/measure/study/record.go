package study

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// record is a file of runs, one JSON object a line. The first line says of which study they are.
type record struct {
	file *os.File
	runs []measure.Run
}

// head tells studies apart.
type head struct {
	Study string `json:"study"`
	Matrix
	Rounds    int `json:"rounds"`
	Megabytes int `json:"megabytes"`
}

// openRecord opens the record of a study. A line that was cut off when the study was stopped is taken away.
func openRecord(s Remote) (*record, error) {
	path := filepath.Join(s.Out, "runs.jsonl")
	want, err := json.Marshal(head{Study: "remote-data", Matrix: s.Matrix, Rounds: s.Rounds, Megabytes: s.Megabytes})
	if err != nil {
		return nil, err
	}
	r := &record{}
	whole, err := r.read(path, string(want))
	if err != nil {
		return nil, err
	}
	if r.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	if err = r.file.Truncate(whole); err == nil {
		_, err = r.file.Seek(whole, 0)
	}
	if err == nil && whole == 0 {
		err = r.write(want)
	}
	if err != nil {
		return nil, errors.Join(err, r.file.Close())
	}
	return r, nil
}

// read reads the runs of a file, and returns how many of its bytes are whole lines.
func (r *record) read(path, want string) (whole int64, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewReader(file)
	for n := 0; ; n++ {
		line, err := lines.ReadString('\n')
		if err != nil { // the end, before which there may be a part of a line
			return whole, nil
		}
		if n == 0 && line != want+"\n" {
			return 0, fmt.Errorf("%s holds runs of another study: %sname another directory, or remove it", path, line)
		}
		if n > 0 {
			var run measure.Run
			if err := json.Unmarshal([]byte(line), &run); err != nil {
				return 0, fmt.Errorf("%s, line %d: %w", path, n+1, err)
			}
			r.runs = append(r.runs, run)
		}
		whole += int64(len(line))
	}
}

func (r *record) has(side string, pair int) bool {
	return slices.ContainsFunc(r.runs, func(run measure.Run) bool { return run.Side == side && run.Pair == pair })
}

// add keeps a run, on disk before it returns.
func (r *record) add(run measure.Run) error {
	data, err := json.Marshal(run)
	if err != nil {
		return err
	}
	r.runs = append(r.runs, run)
	return r.write(data)
}

func (r *record) write(line []byte) error {
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return r.file.Sync()
}

func (r *record) close() error { return r.file.Close() }
