// colly in the race, as its examples have it: asynchronous, one LimitRule, OnHTML and Visit.
//
//	colly --seeds FILE --output FILE --concurrency N --per-host N [--extract]
//
// A LimitRule counts the requests of all hosts that match its pattern together. So it holds the number of all
// requests, and the transport that of one host.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gocolly/colly/v2"
	"github.com/gocolly/colly/v2/storage"
)

type record struct {
	URL     string `json:"url"`
	Status  int    `json:"status"`
	Headers string `json:"headers"`
	Body    string `json:"body"`
}

// oneStep finds out and notes in one step whether a page was visited. colly asks first and notes then, so that
// two pages with the same new link may both have it visited.
type oneStep struct {
	storage.InMemoryStorage
	visited sync.Map
}

func (s *oneStep) IsVisited(request uint64) (bool, error) {
	_, known := s.visited.LoadOrStore(request, nil)
	return known, nil
}

func (s *oneStep) Visited(uint64) error { return nil }

// written is the output, a line for each page.
type written struct {
	lock  sync.Mutex
	lines *json.Encoder
}

func (w *written) add(page *colly.Response) {
	headers := make(map[string]string, len(*page.Headers))
	for name, values := range *page.Headers {
		headers[name] = strings.Join(values, ", ")
	}
	text, err := json.Marshal(headers)
	if err != nil {
		log.Fatal(err)
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	if err := w.lines.Encode(record{page.Request.URL.String(), page.StatusCode, string(text), string(page.Body)}); err != nil {
		log.Fatal(err)
	}
}

// collector has the limits that all contestants have.
func collector(concurrency, perHost int) *colly.Collector {
	c := colly.NewCollector(colly.Async(true))
	c.WithTransport(&http.Transport{
		MaxConnsPerHost:     perHost,
		MaxIdleConnsPerHost: perHost,
		IdleConnTimeout:     90 * time.Second,
	})
	c.SetRequestTimeout(2 * time.Minute)
	rule := &colly.LimitRule{DomainGlob: "*", Parallelism: concurrency}
	if err := errors.Join(c.Limit(rule), c.SetStorage(&oneStep{})); err != nil {
		log.Fatal(err)
	}
	return c
}

// follow visits a link without its fragment, which colly would take for another page.
func follow(link *colly.HTMLElement) {
	href, _, _ := strings.Cut(link.Attr("href"), "#")
	err := link.Request.Visit(href)
	var visited *colly.AlreadyVisitedError
	if err != nil && !errors.As(err, &visited) {
		log.Print(href, ": ", err)
	}
}

func main() {
	seeds := flag.String("seeds", "", "a file with a URL in each line")
	output := flag.String("output", "", "the file of the records")
	concurrency := flag.Int("concurrency", 0, "requests at a time")
	perHost := flag.Int("per-host", 0, "requests at a time to one host")
	extract := flag.Bool("extract", false, "follow links")
	flag.Parse()

	urls, err := os.ReadFile(*seeds)
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.Create(*output)
	if err != nil {
		log.Fatal(err)
	}
	buffer := bufio.NewWriterSize(file, 1<<16)
	pages := &written{lines: json.NewEncoder(buffer)}
	pages.lines.SetEscapeHTML(false)

	c := collector(*concurrency, *perHost)
	c.OnResponse(pages.add)
	c.OnError(func(page *colly.Response, err error) { log.Print(page.Request.URL, ": ", err) })
	if *extract {
		c.OnHTML("a[href]", follow)
	}
	for _, url := range strings.Fields(string(urls)) {
		if err := c.Visit(url); err != nil {
			log.Print(url, ": ", err)
		}
	}
	c.Wait()
	if err := errors.Join(buffer.Flush(), file.Close()); err != nil {
		log.Fatal(err)
	}
}
