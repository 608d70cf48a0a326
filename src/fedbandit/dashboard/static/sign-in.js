// Posts the code of a one-time link, which stands behind the # and so was never sent anywhere.
const form = document.getElementById("sign-in");
const code = location.hash.slice(1);
if (form && code.startsWith("fbl_")) {
  history.replaceState(null, "", location.pathname + location.search); // no code in the browser's history
  form.elements.code.value = code;
  form.submit();
}
