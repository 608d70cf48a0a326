"""Data sets that are downloaded: tested on small files in the same formats, and on a server on this machine."""

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import DataUnavailable, FormatError, InvalidParameter
from fedbandit.simulation.datasets import download, tags
from fedbandit.simulation.datasets.formats import read_touched

N_USERS, N_ITEMS, N_TAGS = 6, 60, 12


def small_data(seed=0):
    """Events (user, item) and tags (item, tag), with a hole: item 1 has no tag."""
    rng = np.random.default_rng(seed)
    events = [(u, i) for u in range(1, N_USERS + 1) for i in sorted(rng.choice(N_ITEMS, 10, replace=False) + 1)]
    tagged = [(i, t) for i in range(2, N_ITEMS + 1) for t in sorted(rng.choice(N_TAGS, 4, replace=False) + 1)]
    return events, tagged


def table(header, lines, separator="\t"):
    return "\r\n".join(separator.join(map(str, line)) for line in [header, *lines]) + "\r\n"


def lastfm_files():
    events, tagged = small_data()
    return {
        "user_artists.dat": table(["userID", "artistID", "weight"], [(u, i, 100 * u) for u, i in events]),
        "user_taggedartists.dat": table(
            ["userID", "artistID", "tagID", "day", "month", "year"], [(1, i, t, 1, 4, 2009) for i, t in tagged]
        ),
        "artists.dat": 'id\tname\turl\tpictureURL\r\n1\tDiary of "Dreams\thttp://x\thttp://y\r\n',
    }


def delicious_files():
    events, tagged = small_data()
    clock = ["day", "month", "year", "hour", "minute", "second"]
    return {
        "user_taggedbookmarks.dat": table(
            ["userID", "bookmarkID", "tagID", *clock], [(u, i, 1, 8, 11, 2010, 23, 29, 22) for u, i in events] * 2
        ),
        "bookmark_tags.dat": table(["bookmarkID", "tagID", "tagWeight"], [(i, t, 3 * t) for i, t in tagged]),
    }


def movielens_100k_files():
    events, _ = small_data()
    rng = np.random.default_rng(1)
    films = []
    for i in range(1, N_ITEMS + 1):
        flags = (rng.random(19) < 0.2).astype(int)
        films.append("|".join([str(i), f"Film {i} (19{50 + i % 50})", "01-Jan-1995", "", "http://é", *map(str, flags)]))
    return {
        "ml-100k/u.data": "".join(f"{u}\t{i}\t{1 + i % 5}\t881250949\n" for u, i in events),
        "ml-100k/u.item": "\n".join(films) + "\n",
    }


def movielens_1m_files():
    events, _ = small_data()
    genres = ["Action", "Drama", "Comedy", "War", "Crime", "Horror", "Musical"]
    films = [
        f"{i}::Episode: {i} (19{50 + i % 50})::{genres[i % 7]}|{genres[(i // 7) % 7]}" for i in range(1, N_ITEMS + 1)
    ]
    return {
        "ml-1m/ratings.dat": "".join(f"{u}::{i}::{1 + i % 5}::978300760\n" for u, i in events),
        "ml-1m/movies.dat": "\n".join(films) + "\n",
    }


def movielens_20m_files():
    events, tagged = small_data()
    films = [(i, f'"Film, {i} (1999)"', "Drama|War" if i % 2 else "Comedy") for i in range(1, N_ITEMS + 1)]
    return {
        "ml-20m/ratings.csv": table(
            ["userId", "movieId", "rating", "timestamp"], [(u, i, 0.5 + i % 5, 1) for u, i in events], ","
        ),
        "ml-20m/movies.csv": table(["movieId", "title", "genres"], films, ","),
        "ml-20m/tags.csv": table(
            ["userId", "movieId", "tag", "timestamp"], [(9, i, f"Tag {t}", 1) for i, t in tagged], ","
        ),
    }


FILES = {
    "lastfm": lastfm_files,
    "delicious": delicious_files,
    "movielens-100k": movielens_100k_files,
    "movielens-1m": movielens_1m_files,
    "movielens-20m": movielens_20m_files,
}


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text.encode("latin-1"))
    return out.getvalue()


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Puts an archive where the cache expects it, with its own checksum in the place of the published one."""

    def put(name, content):
        tags.load_events.cache_clear()
        source = download.SOURCES[name]
        (tmp_path / source.file_name).write_bytes(content)
        changed = download.Source(name, source.url, source.terms, hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(download.SOURCES, name, changed)
        return str(tmp_path)

    yield put
    tags.load_events.cache_clear()


def small_world(name, folder, **options):
    return fb.worlds.real(name, **{"folder": folder, "dim": 5, "n_actions": 8, "least_events": 1, **options})


@pytest.mark.parametrize("name", FILES)
def test_each_event_hides_among_items_the_user_never_touched(name, archive):
    world = small_world(name, archive(name, zipped(FILES[name]())))
    events = world.events
    assert world.fleet_size == N_USERS
    assert events.table.shape[1] == 5
    lengths = np.linalg.norm(events.table, axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1.0)
    touched = [set(events.items[events.users == u]) for u in range(N_USERS)]
    stream = world.stream(np.random.SeedSequence(0))
    active = np.arange(256) % N_USERS
    block = stream.draw(active)
    np.testing.assert_array_equal(block.means.sum(axis=1), 1.0)
    for user, rows, means in zip(active, block.rows, block.means, strict=True):
        assert len(set(rows)) == 8
        assert {int(i) for i in rows if i in touched[user]} == {int(rows[means.argmax()])}
    assert len(set(block.means.argmax(axis=1))) == 8, "the right item must not stand in one place"


@pytest.mark.parametrize("name", FILES)
def test_a_rule_plays_one_pass_of_each_data_set(name, archive):
    world = small_world(name, archive(name, zipped(FILES[name]())))
    trace = fb.simulate(
        fb.FedLinUCB(dim=5, alpha=1.0, beta=0.5),
        world,
        n_agents=world.fleet_size,
        n_rounds=world.n_rows,
        participation=fb.participation.by_rows(world),
        engine="reference",
    )
    assert 0 <= trace.reward[-1] <= world.n_rows


def test_items_without_a_tag_are_neither_played_nor_offered(archive):
    folder = archive("lastfm", zipped(lastfm_files()))
    data = read_touched("lastfm", folder, 0.0)
    world = small_world("lastfm", folder)
    assert 1 in data.items
    assert len(world.events.table) == N_ITEMS - 1
    assert world.n_rows == sum(1 for _, item in small_data()[0] if item != 1)


def test_repeated_events_count_once(archive):
    world = small_world("delicious", archive("delicious", zipped(delicious_files())))
    assert world.n_rows == sum(1 for _, item in small_data()[0] if item != 1)


def test_a_least_rating_and_the_most_active_users_can_be_asked_for(archive):
    folder = archive("movielens-100k", zipped(movielens_100k_files()))
    everything, good = small_world("movielens-100k", folder), small_world("movielens-100k", folder, least_rating=4.0)
    assert 0 < good.n_rows < everything.n_rows
    assert small_world("movielens-100k", folder, n_agents=2).fleet_size == 2
    with pytest.raises(InvalidParameter, match="fewer agents"):
        small_world("movielens-100k", folder, least_events=1000).row_counts


def test_rare_tags_weigh_more_than_common_ones(archive):
    folder = archive("lastfm", zipped(lastfm_files()))
    data = read_touched("lastfm", folder, 0.0)
    known = np.unique(data.tagged_items)
    table = tags.item_features(data, known, 5)
    again = tags.item_features(data, known, 5)
    np.testing.assert_allclose(table, again, atol=1e-8)
    with pytest.raises(InvalidParameter, match="below the 12"):
        tags.item_features(data, known, 12)


@pytest.mark.parametrize(
    "content", [b"no zip", zipped({"other.txt": "x"}), zipped({"user_artists.dat": "userID\n1\n"})]
)
def test_an_archive_of_something_else_is_a_named_error(content, archive):
    with pytest.raises(FormatError, match="lastfm"):
        small_world("lastfm", archive("lastfm", content)).row_counts


# -- the download itself, from a server on this machine


@pytest.fixture
def server():
    """A web server on the loopback interface: paths and what they give."""
    files = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", files
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def source_of(url, content, **changes):
    return download.Source(
        **{
            "name": "small",
            "url": f"{url}/small.zip",
            "terms": "Be kind.",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        | changes
    )


def test_terms_come_first_and_a_second_fetch_needs_no_server(server, tmp_path):
    url, files = server
    files["/small.zip"] = content = b"x" * 200_000
    said = []
    path = download.fetch(source_of(url, content), tmp_path, say=said.append)
    assert path.read_bytes() == content
    assert "Be kind." in said[0] and url in said[1]
    files.clear()
    again = []
    assert download.fetch(source_of(url, content), tmp_path, say=again.append) == path
    assert again == []


def test_a_file_with_another_checksum_is_not_kept(server, tmp_path):
    url, files = server
    files["/small.zip"] = b"damaged"
    with pytest.raises(DataUnavailable, match="SHA-256"):
        download.fetch(source_of(url, b"what it should be"), tmp_path, say=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_in_the_cache_is_found(server, tmp_path):
    (tmp_path / "small.zip").write_bytes(b"damaged")
    with pytest.raises(DataUnavailable, match="remove"):
        download.fetch(source_of("http://127.0.0.1:9", b"right"), tmp_path)


def test_without_a_published_checksum_the_first_download_sets_it(server, tmp_path):
    url, files = server
    files["/small.zip"] = b"first"
    source = source_of(url, b"", sha256=None)
    path = download.fetch(source, tmp_path, say=lambda _: None)
    path.unlink()
    files["/small.zip"] = b"second"
    with pytest.raises(DataUnavailable, match="SHA-256"):
        download.fetch(source, tmp_path, say=lambda _: None)


def test_offline_is_one_clear_sentence_that_says_what_to_do(tmp_path):
    # Nothing listens on the discard port of this machine.
    source = source_of("http://127.0.0.1:9", b"")
    with pytest.raises(DataUnavailable, match=r"cannot be downloaded.*put it into.*digits"):
        download.fetch(source, tmp_path, say=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_an_answer_other_than_200_is_a_named_error(server, tmp_path):
    with pytest.raises(DataUnavailable, match="404"):
        download.fetch(source_of(server[0], b""), tmp_path, say=lambda _: None)


def test_the_cache_directory_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBANDIT_DATA", str(tmp_path / "here"))
    assert download.cache_directory() == tmp_path / "here"
    monkeypatch.delenv("FEDBANDIT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert download.cache_directory() == tmp_path / "fedbandit" / "data"


def test_every_source_has_terms_and_all_but_one_a_checksum():
    assert {name for name, source in download.SOURCES.items() if source.sha256 is None} == {"delicious"}
    assert all(source.terms and source.url.startswith("https://") for source in download.SOURCES.values())
