package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestAServerThatIsAwayIsAskedAgainForAWhile(t *testing.T) {
	away := &client.UnreachableError{Addr: "unix:/s", Err: errors.New("connection reset by peer")}
	starting := &client.Error{Problem: api.Problem{Code: "unavailable", Status: 503, Detail: "it is starting"}}
	gone := &client.Error{Problem: api.Problem{Code: "build_not_found", Status: 404, Detail: "there is no build"}}
	for name, test := range map[string]struct {
		answers []error // the last one for ever
		want    error
		least   time.Duration
		most    time.Duration
	}{
		"it comes back":              {[]error{away, away, starting, nil}, nil, 300 * time.Millisecond, time.Second},
		"it stays away":              {[]error{away}, away, 25 * time.Second, time.Minute},
		"it comes back without that": {[]error{away, gone}, gone, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				n, err := client.Persist(t.Context(), func(context.Context) (int, error) {
					err := test.answers[0]
					if len(test.answers) > 1 {
						test.answers = test.answers[1:]
					}
					return 7, err
				})
				if err != test.want || n != 7 { //nolint:errorlint // the very one
					t.Errorf("got %d, %v, want %v", n, err, test.want)
				}
				if took := time.Since(begin); took < test.least || took > test.most {
					t.Errorf("it took %s, want %s to %s", took, test.least, test.most)
				}
			})
		})
	}
}
